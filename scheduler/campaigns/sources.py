"""Reads a campaign's source from any row on: files on this server, or the files of a dataset on the Hub.

Formats: JSON lines, optionally compressed (`.jsonl`, `.json`, `.ndjson`, with `.gz`, `.xz`, `.zst`), Parquet, and plain
text with one document per file. Files on the Hub are downloaded one at a time and deleted when they are read. No code
of a dataset is executed.
"""

from __future__ import annotations

import fnmatch
import gzip
import io
import json
import lzma
import shutil
import time
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from urllib.parse import quote

from django.conf import settings

from scheduler.campaigns.models import Campaign
from scheduler.hub import HubError, translate_errors

JSON_LINES = (".jsonl", ".json", ".ndjson")
TEXTS = (".txt", ".text", ".md")
PARQUET = (".parquet",)
COMPRESSED = (".gz", ".xz", ".zst")
ABOUT = ("readme.md", "dataset_infos.json", "config.json")
"""Names, in lower case, of the files that describe a dataset on the Hub."""
HUB_TIMEOUT = 20
PART_PREFIX = ".part-"
"""Of the folder of a partial download, beside its file."""
PART_SECONDS = 86_400
"""Age at which a partial download counts as that of a killed process."""
PARQUET_BATCH_ROWS = 200


class SourceError(ValueError):
    """The source cannot be read; the message is a sentence."""


@dataclass(frozen=True)
class SourceRow:
    """One record of the source."""

    file: int  # index in the campaign's files
    row: int  # in the file
    name: str  # of the document
    text: str | None  # None: the record is damaged or has no text


def iterate_rows(campaign: Campaign) -> Generator[SourceRow, None, None]:
    """Yield the rows after the campaign's cursor. Raise SourceError if a file cannot be read."""
    first_file, first_row = campaign.cursor.get("file", 0), campaign.cursor.get("row", 0)
    for number in range(first_file, len(campaign.files)):
        name = campaign.files[number]
        path = fetch_file(campaign, name)
        for row, text in read_file(path, name, first_row if number == first_file else 0, campaign.text_field):
            yield SourceRow(number, row, f"{name}:{row}"[-200:], text)
        if campaign.source == Campaign.Source.HUB:
            path.unlink(missing_ok=True)


# --- file names ------------------------------------------------------------------------------------------------------


def find_local_files(pattern: str) -> list[str]:
    """Return the sorted names of matching files below REPHRASE_FILES. Raise SourceError if there are none."""
    root = Path(settings.REPHRASE_FILES).resolve()
    parts = Path(pattern).parts
    if not parts or Path(pattern).is_absolute() or ".." in parts:
        raise SourceError(f"{pattern!r} is not a glob below the folder of sources (REPHRASE_FILES).")
    try:
        found = [path for path in root.glob(pattern) if path.is_file() and root in path.resolve().parents]
    except (ValueError, OSError) as error:
        raise SourceError(f"{pattern} cannot be read: {error}") from error
    names = sorted(path.relative_to(root).as_posix() for path in found if is_supported(path.name))
    if not names:
        raise SourceError(f"{pattern} matches no supported file below the folder of sources (REPHRASE_FILES).")
    return names


def is_supported(name: str) -> bool:
    return remove_compression_suffix(name).endswith((*JSON_LINES, *TEXTS)) or name.lower().endswith(PARQUET)


def has_documents(name: str) -> bool:
    """Whether a file on the Hub has a supported format and neither is hidden nor describes the dataset."""
    parts = name.lower().split("/")
    return is_supported(name) and parts[-1] not in ABOUT and not any(part.startswith(".") for part in parts)


def remove_compression_suffix(name: str) -> str:
    """Return the name in lower case, without a suffix such as `.gz`."""
    name = name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def find_hub_files(campaign: Campaign) -> tuple[list[str], str]:
    """Return the files of a dataset's config and split, and the commit of its revision. Raise SourceError."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=settings.HUB_ENDPOINT, token=settings.HF_TOKEN or False)
    try:
        with translate_errors(campaign.dataset):
            info = api.dataset_info(campaign.dataset, revision=campaign.revision or None, timeout=HUB_TIMEOUT)
    except HubError as error:
        raise SourceError(str(error)) from error
    names = sorted(file.rfilename for file in info.siblings or [] if has_documents(file.rfilename))
    card: Any = info.card_data
    configs = (card.to_dict().get("configs") if card else None) or []
    selected = select_split_files(names, configs, campaign.config, campaign.split or "train")
    if not selected:
        wanted = f"config {campaign.config or 'default'}, split {campaign.split or 'train'}"
        raise SourceError(f"{campaign.dataset} has no supported files of {wanted}.")
    return selected, str(info.sha)


def select_split_files(
    names: Sequence[str], configs: Sequence[Mapping[str, Any]], config: str, split: str
) -> list[str]:
    """Return the files of a config and a split, by the dataset's card or else by their names.

    `configs`: of the card, see https://huggingface.co/docs/hub/datasets-manual-configuration
    """
    for entry in configs:
        if entry.get("config_name") == (config or "default") or (not config and entry.get("default")):
            globs = get_split_globs(entry, split)
            return [name for name in names if any(fnmatch.fnmatch(name, glob) for glob in globs)]
    inside = [name for name in names if not config or name.startswith(f"{config}/")]
    return [name for name in inside if split in name] or (inside if split == "train" else [])


def get_split_globs(config: Mapping[str, Any], split: str) -> list[str]:
    """Return the globs of a split; a config without splits is all train."""
    files = config.get("data_files") or []
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


# --- file contents ---------------------------------------------------------------------------------------------------


def get_download_folder(campaign: Campaign) -> Path:
    return Path(settings.HOME) / "sources" / str(campaign.pk)


def fetch_file(campaign: Campaign, name: str) -> Path:
    """Return the path of a source file on this disk; download it if needed."""
    if campaign.source == Campaign.Source.FILES:
        return Path(settings.REPHRASE_FILES) / name
    path = get_download_folder(campaign) / name
    if not path.exists():
        download_file(campaign, name, path)
    return path


def download_file(campaign: Campaign, name: str, path: Path) -> None:
    """Download a file of a Hub dataset, completely or not at all."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    url = f"{settings.HUB_ENDPOINT}/datasets/{campaign.dataset}/resolve/{campaign.revision}/{quote(name)}"
    try:
        with translate_errors(campaign.dataset, path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            for part in path.parent.glob(f"{PART_PREFIX}*"):  # of killed processes
                if part.stat().st_mtime < time.time() - PART_SECONDS:
                    shutil.rmtree(part, ignore_errors=True)
            # A new name: a concurrent download must not truncate this file.
            with TemporaryDirectory(prefix=PART_PREFIX, dir=path.parent) as temporary:
                partial = Path(temporary) / path.name
                with partial.open("wb") as file:
                    http_get(url, file, headers=build_hf_headers(token=settings.HF_TOKEN or False))
                partial.replace(path)
    except HubError as error:
        raise SourceError(str(error)) from error


def read_file(path: Path, name: str, start: int, field: str) -> Iterator[tuple[int, str | None]]:
    """Yield row number and text of a file's rows, from row `start` on. Raise SourceError if it cannot be read."""
    try:
        if name.lower().endswith(PARQUET):
            yield from read_parquet(path, start, field)
        elif remove_compression_suffix(name).endswith(TEXTS):
            if start == 0:
                with open_compressed(path) as file:
                    yield 0, file.read().decode("utf-8", "replace")
        else:
            with open_compressed(path) as file:
                for number, line in enumerate(file):
                    if number >= start and line.strip():
                        yield number, parse_line(line, field)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"{name} is damaged or truncated: {error}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{name} cannot be read: {error}") from error


def parse_line(line: bytes, field: str) -> str | None:
    """Return the text of a JSON line; None if the line is damaged or has no text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = record.get(field) if isinstance(record, dict) else None
    return text if isinstance(text, str) else None


def open_compressed(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed by its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"))
    if suffix == ".xz":
        return lzma.open(path, "rb")
    if suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))
    return path.open("rb")


def read_parquet(path: Path, start: int, field: str) -> Iterator[tuple[int, str | None]]:
    """Yield rows from `start` on, without reading the row groups before it."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        if field not in file.schema_arrow.names:
            raise SourceError(f"{path.name} has no column {field!r}.")
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if first + size > start:
                number = first
                for batch in file.iter_batches(PARQUET_BATCH_ROWS, row_groups=[group], columns=[field]):
                    for text in batch.column(0).to_pylist():
                        if number >= start:
                            yield number, text if isinstance(text, str) else None
                        number += 1
            first += size
