"""Read the documents of one file: text, JSON lines, JSON, or Parquet, plain or compressed.

The content decides what a file is, since names are often wrong or general: C4 and Dolma name JSON lines `.json.gz`.
What is no text, or has no documents, is refused and named.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from trainer.data.corpora import Document
from trainer.errors import CorpusError

# A larger text is cut at line ends into documents of about this size, so that memory stays bounded.
LARGEST_DOCUMENT = 16 << 20  # bytes
LARGEST_RECORD = 8 * LARGEST_DOCUMENT  # characters of one item of a JSON array
HEAD_BYTES = 1 << 20  # that decide what a file is
ROWS = 256  # of a Parquet file, read at a time
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
TEXT_NAMES = (".txt", ".text", ".md", ".rst", ".raw", ".tokens")
LINES_NAMES = (".jsonl", ".ndjson")
OTHERS = tuple(
    (re.compile(pattern, re.DOTALL), what)
    for pattern, what in (
        (rb"PK\x03\x04", "a ZIP archive"),
        (rb".{257}ustar", "a tar archive"),
        (rb"7z\xbc\xaf", "a 7z archive"),
        (rb"Rar!", "a RAR archive"),
        (rb"\x04\x22\x4d\x18", "compressed with lz4"),
        (rb"WARC/[01]\.", "an archive of a web crawl (WARC, WET or WAT)"),
        (rb"%PDF-", "a PDF document"),
        (rb"\{\\rtf", "an RTF document"),
        (rb"ARROW1|\xff\xff\xff\xff", "an Arrow file"),
        (rb"\x93NUMPY", "an array of NumPy"),
        (rb"\x89HDF", "an HDF5 file"),
        (rb"SQLite format 3", "an SQLite database"),
        (rb"\x89PNG|\xff\xd8\xff|GIF8", "a picture"),
        (rb"%!PS", "a PostScript document"),
        (rb"\x1f[\x8b\x9d]|BZh[1-9]|\xfd7zXZ\0|\x28\xb5\x2f\xfd", "compressed once more"),
        (rb"(?:\xef\xbb\xbf)?\s*(?i:(?:<!--.{0,999}?-->\s*)?<(?:!doctype html|html|head|body)\b)", "an HTML page"),
        (rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|mediawiki|rss|svg|doc id=|[\w:]+\s[^<>]{0,999}xmlns[:=])", "an XML document"),
        (rb"version https://git-lfs", "a pointer of Git LFS to a file that was not downloaded"),
    )
)
OTHER_NAMES = (".csv", ".tsv", ".html", ".htm", ".xml", ".sql", ".yaml", ".yml")
MAX_ROWS, MIN_ROWS, MIN_STEADY, MIN_RAGGED = 1000, 5, 0.9, 0.6  # of a table: lines looked at, and the share of rows
QUOTED_CELL = re.compile(r'(?:(?<=[,;|\t\n])|\A)"[^"]*(?:""[^"]*)*"(?=[,;|\t\r\n]|\Z)')
COLUMN_NAME = re.compile(r"(?:[^\W\d][\w./%()#-]{0,39}(?: \w{1,20}){0,2})?")
COLUMN_NAMES = {"id", "text", "content", "document", "sentence", "label", "title", "name", "body", "url", "date"}
FIRST_TAG = re.compile(r"<([a-zA-Z][\w:-]{0,40})(?:\s[^<>]{0,999})?/?>")
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
DECODER = json.JSONDecoder()


def read_documents(name: str, path: Path) -> Iterator[Document]:
    """Yield the documents of a file, except empty ones. `name`: the beginning of their ids. Raise CorpusError."""
    try:
        with path.open("rb") as file:
            start = file.read(16)
        if start.startswith(b"PAR1"):
            yield from _read_parquet(name, path)
            return
        opener = _find_opener(name, start)
        with opener(path) as stream:
            head = stream.read(HEAD_BYTES)
        encoding = "utf-16" if head.startswith(UTF16) else "utf-8"
        parse = _choose_parser(name, head, encoding)
        with opener(path) as stream:
            yield from parse(name, stream if encoding == "utf-8" else io.BufferedReader(_Recoded(stream, encoding)))
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{name} is damaged or cut short: {error}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{name} is not {error.encoding.upper()} text: {error.reason}") from error
    except OSError as error:
        raise CorpusError(f"{name} cannot be read: {error.strerror or error}") from error


def strip_compression(name: str) -> str:
    """Return a file's name in lower case, without the ending of a compression."""
    name = name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def _find_opener(name: str, start: bytes) -> Callable[[Path], IO[bytes]]:
    openers: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
        ".gz": (rb"\x1f\x8b", gzip.open),
        ".xz": (rb"\xfd7zXZ\0", lzma.open),
        ".bz2": (rb"BZh[1-9](1AY&SY|\x17rE8P)", bz2.open),
        ".zst": (rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", _open_zstd),  # the second: of pzstd
    }
    for ending, (magic, opener) in openers.items():
        if re.match(magic, start):
            return opener
        if start and name.lower().endswith(ending):
            raise CorpusError(f"{name} is damaged or cut short: it does not begin as a {ending} file does")
    return lambda path: path.open("rb")


def _open_zstd(path: Path) -> IO[bytes]:
    import pyarrow  # here, as below: it takes a quarter of a second

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))


class _Recoded(io.RawIOBase):
    """A stream in another encoding, as UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self._reader, self._rest = codecs.getreader(encoding)(stream), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or self._reader.read(1 << 16).encode()
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


# --- what a file is ---------------------------------------------------------------------------------------------------


def _choose_parser(name: str, head: bytes, encoding: str) -> Callable[[str, IO[bytes]], Iterator[Document]]:
    """Return the parser for a file that begins with `head`. Raise CorpusError if it has no text."""
    for pattern, what in OTHERS:
        if pattern.match(head):
            raise CorpusError(f"{name} is {what}: only text, JSON and Parquet are read")
    stem = strip_compression(name)
    if stem.endswith(LINES_NAMES):
        return _parse_json_lines
    text = head.decode(encoding, "ignore").removeprefix("\ufeff")
    if stem.endswith(OTHER_NAMES[:2]) or _is_table(text.lstrip("\r\n"), is_whole=len(head) < HEAD_BYTES):
        raise CorpusError(
            f"{name} is a table (CSV or TSV): save it, or a text that looks like one, as JSON lines with a text"
        )
    tag = FIRST_TAG.match(text := text.lstrip())
    is_markup = tag is not None and (tag[1].lower() in ("meta", "link") or f"</{tag[1]}>" in text)
    if stem.endswith(OTHER_NAMES) or (is_markup and not stem.endswith((".md", ".rst"))):
        raise CorpusError(f"{name} is markup or code (HTML, XML, SQL, YAML): save its texts as JSON lines")
    line = text.partition("\n")[0]
    is_array = text.startswith("[")
    (first, rest), (single, after) = _decode_first(text.removeprefix("[") if is_array else text), _decode_first(line)
    single = None if after else single
    if first is None and len(head) == HEAD_BYTES:  # a record longer than the head, which ends in a text or an escape
        closed = (f'{text[: len(text) - cut].removeprefix("[")}"}}' for cut in range(6))
        first = next(filter(None, (_decode_first(part)[0] for part in closed)), None)
        single, rest = first if "\n" not in text else None, "{"
    is_document = isinstance(first, dict) and ("text" in first or {"prompt", "response"} <= first.keys())
    if is_document or (isinstance(first, str) and is_array):
        return _parse_json_lines if single == first and not is_array else _parse_json
    lines = text.split("\n", 3)[:3] if len(head) == HEAD_BYTES else text.rstrip().split("\n")[:MAX_ROWS]
    values = [value if not rest_of_line else None for value, rest_of_line in map(_decode_first, lines)]
    if "\\" in text and len(values) > 1 and all(isinstance(value, str) for value in values):
        return _parse_json_lines
    is_lists = all(value and isinstance(value, list) for value in values) and not isinstance(first, dict)
    if is_lists or (is_array and isinstance(first, list)) or re.match(r"\{\s*'\w{1,40}'\s*:", text):
        raise CorpusError(f"{name} has lists or dicts, not texts: save it as JSON lines")
    if len(values) > 2 and line and single is None and all(value and isinstance(value, dict) for value in values[1:3]):
        raise CorpusError(f"{name} has a line before its JSON lines: remove it")
    # An object may begin a text. All of the file, an array of them, or several are records.
    is_whole = isinstance(first, dict) and (
        not rest or isinstance(_decode_first(rest)[0], dict) or len(head) == HEAD_BYTES
    )
    is_record = isinstance(first, dict) and bool(first) and (is_array or is_whole)
    if stem.endswith(TEXT_NAMES) and not is_record:
        return _parse_text
    if text.startswith("{") and "\n" not in text and len(head) == HEAD_BYTES:
        return _parse_json_lines
    if isinstance(first, dict):
        keys = ", ".join(list(first)[:8]) or "none"
        raise CorpusError(f'{name} is JSON without a "text", nor a "prompt" with a "response": its keys are {keys}')
    if stem.endswith(".json"):
        raise CorpusError(f"{name} is not JSON with documents: it begins with {text[:40]!r}")
    return _parse_text


def _decode_first(text: str) -> tuple[Any, str]:
    """Return the first JSON value of a text and what follows; None and the text if it does not begin with one."""
    text = text.lstrip()
    try:
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None, text
    return value, text[end:].lstrip()


def _is_table(text: str, is_whole: bool) -> bool:
    """Return whether the lines are rows of cells, as in CSV and TSV files.

    Either the first line names the columns, or nearly all lines have the same number of cells, three or more, and
    begin or end with a number or have quotes. Cells stand close to their separators; prose has a space after a comma.
    """
    text = re.sub(r"\Asep=.\r?\n", "", text)
    lines = QUOTED_CELL.sub("q", text if is_whole else f'{text}"').splitlines()
    lines = list(filter(str.strip, lines[: MAX_ROWS if is_whole or len(lines) > MAX_ROWS else max(2, len(lines) - 1)]))
    header = text.partition("\n")[0].strip("\r")
    if header.strip('"') in COLUMN_NAMES:
        return len(lines) > 1 and set(lines[1:]) == {"q"}
    return "\x01" in header or any(_has_cells(lines, header, separator) for separator in "\t,;|")


def _has_cells(lines: list[str], header: str, separator: str) -> bool:
    names = [name.strip(' "') for name in header.split(separator)]
    is_named = len(names) == len(set(names)) > 1 and all(map(COLUMN_NAME.fullmatch, names))
    has_header = is_named and not COLUMN_NAMES.isdisjoint(map(str.lower, names))
    if has_header:
        rows = [line for line in lines[1:] if line.count(separator) >= len(names) - 1]
        return len(rows) >= max(1, MIN_RAGGED * (len(lines) - 1))
    most, _ = Counter(line.count(separator) for line in lines).most_common(1)[0] if lines else (0, 0)
    rows = [line for line in lines if line.count(separator) == most]
    if most < 2 or separator == "|" or len(rows) < max(MIN_ROWS, MIN_STEADY * len(lines)):
        return False
    cell = r"(?:q|-?\d+(?:\.\d+)?)"
    edge = re.compile(rf"{cell}{separator}(?=\S)|.*\S{separator}{cell}\Z")
    return all(edge.match(row) or f"{separator}q{separator}" in row for row in rows[1:])


# --- parsers ----------------------------------------------------------------------------------------------------------


def _parse_text(name: str, stream: IO[bytes]) -> Iterator[Document]:
    offset, rest, number = 0, b"", 0
    while block := rest + stream.read(LARGEST_DOCUMENT - len(rest)):
        # A full block may end inside a line or a character: the part after the last line end goes to the next block.
        cut = block.rfind(b"\n") + 1 if len(block) == LARGEST_DOCUMENT else len(block)
        cut = cut or _find_character_boundary(block)
        block, rest = block[:cut], block[cut:]
        text = _decode(name, block, offset)
        if number == 0:
            text = text.removeprefix("\ufeff")
        number += 1
        offset += cut
        if text:
            yield Document(name if number == 1 else f"{name}#{number}", text)


def _find_character_boundary(block: bytes) -> int:
    """Return the largest cut that does not split the last UTF-8 character, at most 3 bytes before the end."""
    for cut in range(len(block) - 1, len(block) - 5, -1):
        if block[cut] & 0xC0 != 0x80:
            return cut
    return len(block)  # not UTF-8: decoding reports the offset


def _decode(name: str, data: bytes, offset: int) -> str:
    if b"\0" in data:
        raise CorpusError(f"{name} has NUL bytes, so it is not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte {data[error.start]:#04x} at offset {offset + error.start}"
        raise CorpusError(f"{name} is not UTF-8 text: {place}") from error


def _parse_json_lines(name: str, stream: IO[bytes]) -> Iterator[Document]:
    return _build_documents(name, "line", _iterate_lines(name, stream))


def _iterate_lines(name: str, stream: IO[bytes]) -> Iterator[tuple[int, Any]]:
    offset = 0
    for number, line in enumerate(stream, start=1):
        text = _decode(name, line, offset).removeprefix("\ufeff")
        offset += len(line)
        if text.strip():
            try:
                yield number, json.loads(text)
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{name}, line {number}, is not JSON: {error}") from error


def _parse_json(name: str, stream: IO[bytes]) -> Iterator[Document]:
    return _build_documents(name, "item", _iterate_values(name, stream))


def _iterate_values(name: str, stream: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield the items of a JSON array, or JSON values one after the other, without reading the whole file."""
    decoder, text, number, wanted = codecs.getincrementaldecoder("utf-8")(), "", 0, HEAD_BYTES
    is_array, is_ended = False, False
    while True:
        piece = stream.read(wanted)
        text = (text + decoder.decode(piece, final=not piece)).lstrip("\ufeff")
        while True:
            text = text.lstrip(" \t\r\n,")
            if number == 0 and not is_array and text.startswith("["):
                is_array, text = True, text[1:]
                continue
            if is_array and text.startswith("]"):
                is_ended, text = True, text[1:].strip()
            if not text or is_ended:
                break
            try:
                value, end = DECODER.raw_decode(text)
            except (ValueError, RecursionError):
                break  # the rest of the value follows
            number, text = number + 1, text[end:]
            yield number, value
        if not piece:
            break
        if len(text) > LARGEST_RECORD:
            raise CorpusError(f"{name}, item {number + 1}, is not JSON, or has more than {LARGEST_RECORD:,} characters")
        wanted = max(HEAD_BYTES, len(text))  # so that a long value is not parsed often
    if text or (is_array and not is_ended):
        raise CorpusError(f"{name}, item {number + 1}, is not JSON, or the file is cut short")


def _read_parquet(name: str, path: Path) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = ["text"] if "text" in names else ["prompt", "response"]
            if not set(columns) <= set(names):
                raise CorpusError(f"{name} has no column text: its columns are {', '.join(names[:8])}")
            batches = file.iter_batches(batch_size=ROWS, columns=columns)
            rows = enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
            yield from _build_documents(name, "row", rows)
    except pyarrow.ArrowException as error:
        raise CorpusError(f"{name} is damaged or cut short: {error}") from error


def _build_documents(name: str, unit: str, records: Iterable[tuple[int, Any]]) -> Iterator[Document]:
    for number, record in records:
        document = _build_document(f"{name}:{number}", f"{name}, {unit} {number},", record)
        if document.text:
            yield document


def _build_document(identifier: str, place: str, record: Any) -> Document:
    fields = record if isinstance(record, dict) else {"text": record} if isinstance(record, str) else {}
    parts = ("", fields["text"] or "") if "text" in fields else (fields.get("prompt"), fields.get("response"))
    if not all(isinstance(part, str) for part in parts):
        raise CorpusError(f'{place} has no "text", nor a "prompt" with a "response"')
    prompt, response = parts
    text = prompt + response
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can contain half a surrogate pair
        raise CorpusError(f"{place} holds half a surrogate pair at character {error.start}") from error
    return Document(identifier, text, prompt_length=len(prompt))
