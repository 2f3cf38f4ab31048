"""Where a campaign's text is from: files, of this server or of a dataset on the Hub, read from any row on.

JSON lines, also compressed (`.jsonl`, `.json`, `.ndjson`, with `.gz`, `.xz`, `.zst`), Parquet, and plain text, which is
one document a file. A dataset on the Hub is read file by file, as it is there: each is fetched whole, and forgotten
when it has been read. Nothing of a dataset is ever executed.
"""

from __future__ import annotations

import fnmatch
import gzip
import io
import json
import lzma
import shutil
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from django.conf import settings

from scheduler.hub import HubError, translate_errors
from scheduler.models import Campaign

LINES = (".jsonl", ".json", ".ndjson")
TEXTS = (".txt", ".text", ".md")
PARQUET = (".parquet",)
COMPRESSED = (".gz", ".xz", ".zst")
TIMEOUT = 20
"""Seconds for the Hub's first answer."""
ROWS_AT_ONCE = 200


class SourceError(ValueError):
    """The source cannot be read; the message is a sentence."""


@dataclass(frozen=True)
class Row:
    """One record of the source. No text: there is none in it."""

    file: int
    row: int
    """In its file."""
    name: str
    """Of the document, for people."""
    text: str | None


def rows(campaign: Campaign) -> Generator[Row, None, None]:
    """Yield what follows the campaign's cursor. Raise SourceError where it cannot be read."""
    begin, row = campaign.cursor.get("file", 0), campaign.cursor.get("row", 0)
    for number in range(begin, len(campaign.files)):
        name = campaign.files[number]
        path = fetched(campaign, name)
        for index, text in records(path, name, row if number == begin else 0, campaign.text_field):
            yield Row(number, index, f"{name}:{index}"[-200:], text)
        forget(campaign, path)


# --- which files -----------------------------------------------------------------------------------------------------


def resolve(campaign: Campaign) -> tuple[list[str], str]:
    """Return the files of the source, in order, and the revision that they are of. Raise SourceError."""
    if campaign.source == Campaign.Source.HUB:
        return on_the_hub(campaign)
    return sorted(local(campaign.dataset)), ""


def local(pattern: str) -> list[str]:
    """Return the names of files below REPHRASE_FILES."""
    root = Path(settings.REPHRASE_FILES).resolve()
    parts = Path(pattern).parts
    if not parts or Path(pattern).is_absolute() or ".." in parts:
        raise SourceError(f"{pattern!r} is not a glob below the folder of sources (REPHRASE_FILES).")
    found = [path for path in root.glob(pattern) if path.is_file() and root in path.resolve().parents]
    names = [path.relative_to(root).as_posix() for path in found if readable(path.name)]
    if not names:
        raise SourceError(f"{pattern} matches no file that can be read below the folder of sources (REPHRASE_FILES).")
    return names


def readable(name: str) -> bool:
    return plain_name(name).endswith((*LINES, *TEXTS)) or name.lower().endswith(PARQUET)


def plain_name(name: str) -> str:
    """Return the name in lower case without the ending of its compression."""
    name = name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def on_the_hub(campaign: Campaign) -> tuple[list[str], str]:
    """Return the files of a dataset's config and split, and the commit that its revision is now."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=settings.HUB_ENDPOINT, token=settings.HF_TOKEN or False)
    try:
        with translate_errors(campaign.dataset):
            info = api.dataset_info(campaign.dataset, revision=campaign.revision or None, timeout=TIMEOUT)
    except HubError as error:
        raise SourceError(str(error)) from error
    names = sorted(file.rfilename for file in info.siblings or [] if readable(file.rfilename))
    card: Any = info.card_data
    configs = (card.to_dict().get("configs") if card else None) or []
    chosen = of_split(names, configs, campaign.config, campaign.split)
    if not chosen:
        what = f"config {campaign.config or 'default'}, split {campaign.split or 'train'}"
        raise SourceError(f"{campaign.dataset} has no files of {what} that can be read here.")
    return chosen, str(info.sha)


def of_split(names: Sequence[str], configs: Sequence[Mapping[str, Any]], config: str, split: str) -> list[str]:
    """Return the files of a config and a split: as the dataset's card says, otherwise by their names.

    What the card may say: https://huggingface.co/docs/hub/datasets-manual-configuration
    """
    split = split or "train"
    for told in configs:
        if told.get("config_name") == (config or "default") or (not config and told.get("default")):
            return [name for name in names if any(fnmatch.fnmatch(name, glob) for glob in globs(told, split))]
    inside = [name for name in names if not config or name.startswith(f"{config}/")]
    return [name for name in inside if split in name] or (inside if split == "train" else [])


def globs(told: Mapping[str, Any], split: str) -> list[str]:
    """Return the globs of a config's split; one that names no splits is all train."""
    files = told.get("data_files") or []
    if isinstance(files, str):
        files = [files]
    if files and isinstance(files[0], str):
        return list(files) if split == "train" else []
    found: list[str] = []
    for part in files:
        if part.get("split") == split:
            path = part.get("path") or []
            found += [path] if isinstance(path, str) else path
    return found


# --- what is in them -------------------------------------------------------------------------------------------------


def folder_of(campaign: Campaign) -> Path:
    return Path(settings.HOME) / "sources" / str(campaign.pk)


def fetched(campaign: Campaign, name: str) -> Path:
    """Return where a file of the source lies on this disk."""
    if campaign.source == Campaign.Source.FILES:
        return Path(settings.REPHRASE_FILES) / name
    path = folder_of(campaign) / name
    if not path.exists():
        download(campaign, name, path)
    return path


def download(campaign: Campaign, name: str, path: Path) -> None:
    """Fetch a file of a dataset on the Hub: whole, or not there."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    address = f"{settings.HUB_ENDPOINT}/datasets/{campaign.dataset}/resolve/{campaign.revision}/{quote(name)}"
    aside = path.with_name(f".{path.name}.part")
    aside.parent.mkdir(parents=True, exist_ok=True)
    try:
        with translate_errors(campaign.dataset), aside.open("wb") as file:
            http_get(address, file, headers=build_hf_headers(token=settings.HF_TOKEN or False))
        aside.rename(path)
    except HubError as error:
        raise SourceError(str(error)) from error
    finally:
        aside.unlink(missing_ok=True)


def forget(campaign: Campaign, path: Path) -> None:
    """A file has been read to its end: what was fetched may go."""
    if campaign.source == Campaign.Source.HUB:
        path.unlink(missing_ok=True)


def forget_all(campaign: Campaign) -> None:
    shutil.rmtree(folder_of(campaign), ignore_errors=True)


def records(path: Path, name: str, start: int, field: str) -> Iterator[tuple[int, str | None]]:
    """Yield the texts of a file from a row on, each with its number."""
    try:
        if name.lower().endswith(PARQUET):
            yield from of_parquet(path, start, field)
        elif plain_name(name).endswith(TEXTS):
            if start == 0:
                with opened(path) as file:
                    yield 0, file.read().decode("utf-8", "replace")
        else:
            yield from of_lines(path, start, field)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"{name} is damaged or cut short: {error}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{name} cannot be read: {error}") from error


def of_lines(path: Path, start: int, field: str) -> Iterator[tuple[int, str | None]]:
    with opened(path) as file:
        for number, line in enumerate(file):
            if number >= start and line.strip():
                yield number, of_line(line, field)


def of_line(line: bytes, field: str) -> str | None:
    """Return the text of one line; None where the line is damaged or has none: that is one row, not all of them."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = record.get(field) if isinstance(record, dict) else None
    return text if isinstance(text, str) else None


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading what it holds."""
    ending = path.suffix.lower()
    if ending == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"))
    if ending == ".xz":
        return lzma.open(path, "rb")
    if ending == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))
    return path.open("rb")


def of_parquet(path: Path, start: int, field: str) -> Iterator[tuple[int, str | None]]:
    """Yield from a row on; groups of rows that lie before it are not read."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        if field not in file.schema_arrow.names:
            raise SourceError(f"{path.name} has no column {field!r}.")
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if first + size > start:
                number = first
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=[field]):
                    for text in batch.column(0).to_pylist():
                        if number >= start:
                            yield number, text if isinstance(text, str) else None
                        number += 1
            first += size
