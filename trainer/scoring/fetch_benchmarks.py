"""Download evaluation data from its pinned sources (`trainer.scoring.benchmark_sources`)."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from trainer.scoring.benchmark_sources import GitFile, HubSplit, Source, find_source
from trainer.scoring.benchmark_tasks import check_names, find_file, list_files

RAW_URL = "https://raw.githubusercontent.com"
TIMEOUT = 60.0  # seconds without a byte
REASON_LENGTH = 160


def fetch_benchmarks(names: Sequence[str], folder: Path, show: Callable[[str], None]) -> dict[str, str]:
    """Download the files that the tasks lack into the folder; return task -> reason for those that still lack one.

    Files are written whole or not at all, so that another call continues. Raise `UnknownBenchmarkError`.
    """
    check_names(names)
    failed: dict[str, str] = {}
    for name in names:
        for path in list_files(name):
            if find_file(path, folder):
                continue
            source = find_source(path)
            assert source is not None, f"it ships with the repository: {path}"
            show(f"{path} from {source}")
            try:
                atomic_write_bytes(folder / path, fetch(source))
            except Exception as error:  # of datasets, huggingface_hub, fsspec, pyarrow or httpx: all mean the same here
                failed[name] = f"{source}: {describe_fetch_error(error)}"
                break
    return failed


def fetch(source: Source) -> bytes:
    """Return the content of the file that is made of a source. Raises errors of the clients' own classes."""
    return fetch_hub_split(source) if isinstance(source, HubSplit) else fetch_git_file(source)


def fetch_hub_split(source: HubSplit) -> bytes:
    """Return the rows as compressed JSON lines; the same rows give the same bytes."""
    from datasets import load_dataset  # imported here: it takes seconds

    rows = load_dataset(source.repository, source.configuration, split=source.split, revision=source.revision)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return gzip.compress(lines.encode(), mtime=0)


def fetch_git_file(source: GitFile) -> bytes:
    """Return the file's bytes; raise ValueError if they are not those that the commit names."""
    address = f"{RAW_URL}/{source.repository}/{source.commit}/{source.path}"
    response = httpx.get(address, timeout=TIMEOUT, follow_redirects=True)
    content = response.raise_for_status().content
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    if blob != source.blob:
        raise ValueError(f"the content of {address} is not that of git's object {source.blob[:8]}")
    return content


def atomic_write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def describe_fetch_error(error: Exception) -> str:
    """Return an error as one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:REASON_LENGTH]
