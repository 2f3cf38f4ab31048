"""Build a dataset folder from a corpus: spool, split, train the tokenizer, tokenize, write the manifest.

All files are written to a temporary folder next to the destination, which is renamed at the end, so a dataset folder is
either complete or absent. After an interruption of any kind the same request continues in the temporary folder. Memory
is bounded by the longest document (16 MiB for plain text), a batch of 2 MiB for each process, and the index.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from trainer.data import splits
from trainer.data.corpora import Corpus
from trainer.data.progress import show_phase
from trainer.data.shards import (
    FORMAT,
    FORMAT_WITH_PROMPTS,
    MANIFEST,
    SPLITS,
    compute_content_hash,
    get_token_dtype,
    write_file,
)
from trainer.data.spool import Spool, SpoolWriter
from trainer.data.tokenization import Row, ShardTask, plan_shards, tokenize_shards
from trainer.data.tokenizer import Tokenizer, TokenizerSpec, load_tokenizer
from trainer.data.tokenizer_training import train_bpe
from trainer.errors import DatasetError, UnsuitableCorpusError

REQUEST = "request.json"  # what a temporary folder is for
SAMPLE_BYTES = 2 << 10  # bytes of text per entry of a tokenizer to train it on, spread over the train split
SAVE_SECONDS = 10.0  # interval between two saved positions in the corpus
Advance = Callable[[int], None]  # called with a number of bytes of text


def build_dataset(
    folder: Path,
    corpus: Corpus,
    spec: TokenizerSpec,
    limit_bytes: int | None,
    origin: dict[str, Any],
    console: Console,
) -> None:
    """Build the dataset at `folder`, which must be absent or empty. The caller holds the lock.

    `origin` is copied into the manifest: the corpus's spec, the limit and the cache key.
    """
    partial = folder.with_name(f".{folder.name}.preparing")
    try:
        _open_partial(partial, origin, console)
        if not (partial / MANIFEST).exists():
            _write_dataset(partial, corpus, spec, limit_bytes, origin, console)
        shutil.rmtree(partial / "spool", ignore_errors=True)
        partial.rename(folder)
        (folder / REQUEST).unlink()
        _sync_folder(folder.parent)
    except OSError as error:  # full disk, quota
        raise DatasetError(f"{folder} cannot be written: {error.strerror or error}") from error
    except UnsuitableCorpusError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        if not any((partial / name).exists() for name in (MANIFEST, "spool/documents.json")):  # nothing was saved
            shutil.rmtree(partial, ignore_errors=True)


def _open_partial(partial: Path, origin: dict[str, Any], console: Console) -> None:
    """Keep the temporary folder of an interrupted preparation of the same dataset, else begin with an empty one."""
    request = json.dumps(origin)
    if (partial / REQUEST).is_file() and (partial / REQUEST).read_text() == request:
        console.print("Continuing an interrupted preparation ...", markup=False)
        return
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "spool").mkdir(parents=True)
    (partial / REQUEST).write_text(request)


def _write_dataset(
    folder: Path,
    corpus: Corpus,
    spec: TokenizerSpec,
    limit_bytes: int | None,
    origin: dict[str, Any],
    console: Console,
) -> None:
    work = folder / "spool"
    _spool_corpus(work / "documents", corpus, limit_bytes, console)
    with Spool(work / "documents") as documents:
        has_prompts = documents.has_prompts
        spool, assignment = _assign_splits(documents, work / "pieces")
    if not (folder / "tokenizer.json").exists():
        tokenizer = spec.tokenizer or _train_tokenizer(spool, assignment, spec, console)
        tokenizer.save(folder / "tokenizer.json")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    with Spool(spool) as reader:
        lengths = reader.lengths
    tasks = plan_shards(assignment, lengths)
    dtype = get_token_dtype(tokenizer.vocabulary_size, has_prompts)
    rows = tokenize_shards(folder, spool, tasks, dtype, work / "shards.jsonl", console)
    manifest = {
        "format": FORMAT_WITH_PROMPTS if has_prompts else FORMAT,
        **origin,
        "tokenizer": {
            "spec": spec.text,
            "vocabulary_size": tokenizer.vocabulary_size,
            "end_of_text": tokenizer.end_of_text,
            "sha256": tokenizer.sha256,
        },
        "splits": {split: _describe_split(split, tasks, rows) for split in SPLITS},
    }
    manifest["hash"] = compute_content_hash(manifest)
    write_file(
        folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    )


def _describe_split(split: str, tasks: list[ShardTask], rows: dict[str, Row]) -> dict[str, Any]:
    own = [task for task in tasks if task.split == split]
    return {
        "documents": sum(len(task.numbers) for task in own),
        "tokens": sum(rows[task.path]["tokens"] for task in own),
        "bytes": sum(task.size for task in own),
        "shards": [rows[task.path] for task in own],
    }


def _spool_corpus(path: Path, corpus: Corpus, limit_bytes: int | None, console: Console) -> None:
    with SpoolWriter(path) as spool, show_phase(console, "Reading the corpus", limit_bytes, spool.size) as phase:
        if spool.is_complete:
            return
        stream = corpus.open_stream(spool.position)
        saved = time.monotonic()
        for document in stream:
            phase.advance(spool.add(document, None if limit_bytes is None else limit_bytes - phase.done))
            if phase.done == limit_bytes or spool.has_split_character:
                break
            if time.monotonic() - saved >= SAVE_SECONDS:
                spool.save(stream.state_dict())
                saved = time.monotonic()
        spool.save(None, complete=True)


def _assign_splits(documents: Spool, pieces: Path) -> tuple[Path, np.ndarray]:
    """Return the path of a spool and the split of each document. Cut them into `pieces` where they are too long."""
    total = int(documents.lengths.sum())
    if total < splits.SMALLEST_CORPUS:
        copies = f", without {documents.duplicates:,} copies of documents" if documents.duplicates else ""
        raise UnsuitableCorpusError(
            f"A dataset needs at least {splits.SMALLEST_CORPUS} bytes of text; this corpus has {total}{copies}"
        )
    assignment = splits.assign_splits(documents.keys, documents.lengths)
    if assignment is not None:
        return documents.path, assignment
    size = max(splits.SMALLEST_PIECE, total // splits.PIECES)
    with SpoolWriter(pieces) as writer:
        if not writer.is_complete:
            for number in range(len(documents)):
                for piece in splits.cut_document(documents.read_document(number), size):
                    writer.add(piece)
            writer.save(None, complete=True)
    with Spool(pieces) as spool:
        assignment = splits.assign_splits(spool.keys, spool.lengths)
    if assignment is None:
        raise UnsuitableCorpusError("The corpus repeats itself: without duplicates it cannot be split into three parts")
    return pieces, assignment


def _train_tokenizer(path: Path, assignment: np.ndarray, spec: TokenizerSpec, console: Console) -> Tokenizer:
    assert spec.train_size is not None
    numbers = np.flatnonzero(assignment == splits.TRAIN)
    with Spool(path) as spool:
        size = min(SAMPLE_BYTES * spec.train_size, int(spool.lengths[numbers].sum()))
        with show_phase(console, "Training the tokenizer", size) as phase:
            return train_bpe(_report_progress(_sample_texts(spool, numbers, size), phase.advance), spec.train_size)


def _report_progress(texts: Iterable[str], advance: Advance) -> Iterator[str]:
    for text in texts:
        advance(len(text))
        yield text


def _sample_texts(spool: Spool, numbers: np.ndarray, size: int) -> Iterator[str]:
    """Yield about `size` bytes: heads of documents, spread evenly, short ones as a whole or not at all."""
    lengths = spool.lengths
    share = min(1.0, size / int(lengths[numbers].sum()))
    seen = sampled = 0
    for number in map(int, numbers):
        seen += int(lengths[number])
        if (quota := round(seen * share) - sampled) > 0:
            quota = min(max(quota, 4 << 10), int(lengths[number]))
            sampled += quota
            yield spool.read_document(number, quota).text


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
