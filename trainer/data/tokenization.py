"""Tokenize the documents of a spool into shards, in parallel processes, each shard once.

A shard is a task: its documents follow from the spool alone, so neither the number of processes nor an interruption
changes a byte. A finished shard gets a line in a journal; a shard without one is written anew.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from trainer.accounting.cores import count_cores
from trainer.data import splits
from trainer.data.corpora import Document
from trainer.data.progress import ProgressPhase, show_phase
from trainer.data.shards import PROMPT_BIT, SPLITS, FileWriter, write_file
from trainer.data.spool import Spool
from trainer.data.tokenizer import Tokenizer, load_tokenizer
from trainer.errors import DatasetError

SHARD_TEXT = 256 << 20  # bytes of text for a shard: about 128 MiB of uint16
PARALLEL_TEXT = 64 << 20  # less text is tokenized in this process, since others take seconds to start
TOKENIZER_BATCH = 2 << 20  # characters of text tokenized at once
POLL_SECONDS = 0.5  # interval of updates of the progress
Advance = Callable[[int], None]  # called with a number of bytes of text
Row = dict[str, Any]  # path, tokens, size and sha256 of a shard, as in the manifest


class StoppedError(Exception):
    """The main process ends."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A file to write: tokens, or text in the test split."""

    split: str
    path: str  # relative to the dataset's folder
    numbers: np.ndarray  # of the documents
    size: int  # bytes of their text


def plan_shards(assignment: np.ndarray, lengths: np.ndarray) -> list[ShardTask]:
    """Return a task for about every `SHARD_TEXT` bytes of train and of dev, and one for test."""
    tasks = []
    for split, code in zip(SPLITS, (splits.TRAIN, splits.DEV, splits.TEST), strict=True):
        numbers = np.flatnonzero(assignment == code)
        sizes = lengths[numbers].astype(np.int64)
        shard = (np.cumsum(sizes) - sizes) // (SHARD_TEXT if split != "test" else 1 << 62)
        parts = np.split(numbers, np.flatnonzero(np.diff(shard)) + 1)
        for part in (part for part in parts if len(part)):
            name = "documents.jsonl" if split == "test" else f"{sum(task.split == split for task in tasks):05d}.bin"
            tasks.append(ShardTask(split, f"{split}/{name}", part, int(lengths[part].sum())))
    return tasks


def tokenize_shards(
    folder: Path, spool: Path, tasks: list[ShardTask], dtype: np.dtype[Any], journal: Path, console: Console
) -> dict[str, Row]:
    """Write the shards of all tasks that are not in the journal; return the rows of all by path."""
    rows = _read_journal(journal)
    _remove_unfinished(folder, rows)
    left = [task for task in tasks if task.path not in rows]
    total, size = sum(task.size for task in tasks), sum(task.size for task in left)
    workers = min(count_cores(), len(left)) if size >= PARALLEL_TEXT else 1
    with show_phase(console, "Tokenizing", total, total - size) as phase, journal.open("a") as lines:
        arguments = (folder, spool, dtype)
        finished = (
            _run_in_processes(workers, arguments, left, phase) if workers > 1 else _run_here(arguments, left, phase)
        )
        for row in finished:
            rows[row["path"]] = row
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            os.fsync(lines.fileno())
    return rows


def _read_journal(journal: Path) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # the line that was being written
            break
        rows[row["path"]] = row
    write_file(journal, "".join(json.dumps(row) + "\n" for row in rows.values()).encode())
    return rows


def _remove_unfinished(folder: Path, rows: dict[str, Row]) -> None:
    for split in SPLITS:
        for path in (folder / split).glob("*"):
            if f"{split}/{path.name}" not in rows:
                path.unlink()


def _run_here(
    arguments: tuple[Path, Path, np.dtype[Any]], tasks: list[ShardTask], phase: ProgressPhase
) -> Iterator[Row]:
    folder, spool, dtype = arguments
    with Spool(spool) as documents:
        writer = ShardWriter(folder, documents, dtype, phase.advance)
        yield from map(writer.write_shard, tasks)


def _run_in_processes(
    workers: int, arguments: tuple[Path, Path, np.dtype[Any]], tasks: list[ShardTask], phase: ProgressPhase
) -> Iterator[Row]:
    """Yield the rows as their shards are finished."""
    context = multiprocessing.get_context("spawn")
    done, stop = context.Value("Q", 0), context.Event()
    with ProcessPoolExecutor(workers, context, _start_worker, (*arguments, done, stop)) as pool:
        pending = {pool.submit(_write_shard, task) for task in tasks}
        start = phase.done
        try:
            while pending:
                finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                phase.advance(start + done.value - phase.done)
                for future in finished:
                    yield future.result()
        except BrokenProcessPool as error:
            raise DatasetError(
                "A tokenizing process was killed, possibly for its memory: run the same command again to continue"
            ) from error
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


_writer: ShardWriter | None = None  # of a worker process


def _start_worker(folder: Path, spool: Path, dtype: np.dtype[Any], done: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process sets `stop`
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()

    def advance(size: int) -> None:
        with done.get_lock():
            done.value += size
        if stop.is_set():
            raise StoppedError

    global _writer
    _writer = ShardWriter(folder, Spool(spool), dtype, advance)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _write_shard(task: ShardTask) -> Row:
    assert _writer is not None
    return _writer.write_shard(task)


class ShardWriter:
    """Write shards of one dataset. Memory is bounded by the longest document and a batch of 2 MiB."""

    def __init__(self, folder: Path, spool: Spool, dtype: np.dtype[Any], advance: Advance) -> None:
        self._folder, self._spool, self._dtype, self._advance = folder, spool, dtype, advance
        self._tokenizer = load_tokenizer(folder / "tokenizer.json")

    def write_shard(self, task: ShardTask) -> Row:
        """Write a file whole or not at all; return its row."""
        path = self._folder / task.path
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        tokens = 0
        with FileWriter(partial) as file:
            for batch in batch_documents(self._spool.iterate_documents(task.numbers)):
                encoded = _encode_documents(batch, self._tokenizer)
                tokens += sum(map(len, encoded))
                file.write(_format_texts(batch) if task.split == "test" else self._pack(encoded))
                self._advance(sum(len(document.text.encode()) for document in batch))
            row = {"path": task.path, "tokens": tokens, "size": file.size, "sha256": file.finish()}
        partial.replace(path)
        return row

    def _pack(self, encoded: list[list[int]]) -> bytes:
        return np.array([token for ids in encoded for token in ids], dtype=self._dtype).tobytes()


def batch_documents(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= TOKENIZER_BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode_documents(batch: list[Document], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids of each document after an end-of-text token. A prompt is encoded separately, as at inference."""
    ids = iter(tokenizer.encode_batch([part for document in batch for part in _split_prompt(document)]))
    encoded = []
    for document in batch:
        prompt = next(ids) if document.prompt_length else []
        encoded.append([tokenizer.end_of_text, *(token | PROMPT_BIT for token in prompt), *next(ids)])
    return encoded


def _split_prompt(document: Document) -> tuple[str, ...]:
    text, end = document.text, document.prompt_length
    return (text[:end], text[end:]) if end else (text,)


def _format_texts(batch: list[Document]) -> bytes:
    """Return text as JSON lines, since the scorer is independent of the tokenizer."""
    lines = (json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) for document in batch)
    return "".join(f"{line}\n" for line in lines).encode()
