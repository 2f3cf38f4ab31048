"""`files:`: plain text and JSONL in local files, optionally compressed with gzip or xz.

The argument is a comma-separated list of globs, folders or file names. A glob takes every file it matches (`**` crosses
folders). A folder is searched for files with the suffixes in `TEXT_ENDINGS`. A `.jsonl` file has one JSON object a
line: either a "text", or a "prompt" and a "response", which are concatenated and of which only the response is learned.
Any other file is one document of UTF-8 text, unchanged but for a byte order mark. Files are ordered by their names
below their common folder, independently of the file system, the locale and the location.
"""

from __future__ import annotations

import glob
import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from trainer.data.corpora.document import Corpus, CorpusInfo, Document
from trainer.data.errors import CorpusError
from trainer.protocol.files import hash_file

# Applies to folders, which contain other files, too. A glob or a name takes any file.
TEXT_ENDINGS = (".txt", ".text", ".md", ".rst", ".raw", ".tokens", ".jsonl")
COMPRESSED = {".gz": gzip.open, ".xz": lzma.open}
# A larger text is cut at line ends into documents of about this size, so that memory stays bounded.
LARGEST_DOCUMENT = 16 << 20  # bytes

INFO = CorpusInfo(license="that of your files", size="that of your files", source="files of this machine")


def build_corpus(argument: str) -> Corpus:
    files = _name_files(_find_files(argument), argument)
    return Corpus(fingerprint=partial(_compute_fingerprint, files), documents=partial(_iterate_documents, files))


def _find_files(argument: str) -> set[Path]:
    found: set[Path] = set()
    # A name may contain a comma, so the whole argument is tried first.
    patterns = [argument] if argument and _has_file(argument) else argument.split(",")
    for pattern in (part.strip() for part in patterns):
        if not pattern:
            raise CorpusError("files: needs a glob, a folder or a file after the colon, such as files:books/*.txt")
        matched = _expand_pattern(pattern)
        if not matched:
            raise CorpusError(f"files:{pattern} matches no file of text")
        found |= matched
    return found


def _has_file(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # name too long, NUL, unknown user: there is no such file
        return False


def _expand_pattern(pattern: str) -> set[Path]:
    whole = os.path.expanduser(pattern)  # noqa: PTH111
    names = [pattern] if _has_file(pattern) else glob.glob(whole, recursive=True)  # noqa: PTH207
    found: set[Path] = set()
    for path in (Path(name).expanduser() for name in names):
        if path.is_dir():
            found |= _walk_folder(path)
        elif path.is_file():
            found.add(Path(os.path.normpath(path.absolute())))
    return found


def _walk_folder(folder: Path) -> set[Path]:
    found = set()
    for parent, folders, names in os.walk(os.path.normpath(folder.absolute()), onerror=_raise_corpus_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and _strip_compression(name).endswith(TEXT_ENDINGS):
                found.add(Path(parent, name))
    return found


def _raise_corpus_error(error: OSError) -> None:
    raise CorpusError(f"{error.filename} cannot be read: {error.strerror}")


def _strip_compression(name: str) -> str:
    """Return the name in lower case, without .gz or .xz."""
    name = name.lower()
    stem, ending = os.path.splitext(name)  # noqa: PTH122
    return stem if ending in COMPRESSED else name


def _name_files(paths: set[Path], argument: str) -> list[tuple[str, Path]]:
    """Return (name below the common folder, path), sorted by name. Document ids contain the name, not the path."""
    try:
        common = os.path.commonpath([path.parent for path in paths])
    except ValueError as error:  # two drives
        raise CorpusError(f"files:{argument} matches files without a common folder") from error
    return sorted((path.relative_to(common).as_posix(), path) for path in paths)


def _compute_fingerprint(files: list[tuple[str, Path]]) -> dict[str, Any]:
    return {"files": [[name, _hash_file(name, path)] for name, path in files]}


def _hash_file(name: str, path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise CorpusError(f"{name} cannot be read: {error.strerror or error}") from error


def _iterate_documents(files: list[tuple[str, Path]]) -> Iterator[Document]:
    for name, path in files:
        parse = _parse_json_lines if _strip_compression(name).endswith(".jsonl") else _parse_text
        opener: Any = COMPRESSED.get(path.suffix.lower(), open)
        try:
            with opener(path, "rb") as stream:
                yield from parse(name, stream)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise CorpusError(f"{name} is damaged or cut short: {error}") from error
        except OSError as error:
            raise CorpusError(f"{name} cannot be read: {error.strerror or error}") from error


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
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte {data[error.start]:#04x} at offset {offset + error.start}"
        raise CorpusError(f"{name} is not UTF-8 text: {place}") from error


def _parse_json_lines(name: str, stream: IO[bytes]) -> Iterator[Document]:
    offset = 0
    for number, line in enumerate(stream, start=1):
        text = _decode(name, line, offset).removeprefix("\ufeff")
        offset += len(line)
        if text.strip():
            document = _parse_record(name, number, text)
            if document.text:
                yield document


def _parse_record(name: str, number: int, line: str) -> Document:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{name}, line {number}, is not JSON: {error}") from error
    fields = record if isinstance(record, dict) else {}
    parts = ("", fields.get("text")) if "text" in fields else (fields.get("prompt"), fields.get("response"))
    if not all(isinstance(part, str) for part in parts):
        raise CorpusError(f'{name}, line {number}, has no "text", nor a "prompt" with a "response"')
    prompt, response = parts
    text = prompt + response
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can contain half a surrogate pair
        raise CorpusError(f"{name}, line {number}, holds half a surrogate pair at character {error.start}") from error
    return Document(f"{name}:{number}", text, prompt_length=len(prompt))
