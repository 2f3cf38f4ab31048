"""Build a dataset folder from a corpus: spool, split, train the tokenizer, tokenize, write the manifest.

All files are written to a temporary folder next to the destination, which is renamed at the end, so a dataset folder is
either complete or absent. Memory is bounded by the longest document (16 MiB for plain text) plus a batch of 2 MiB.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from trainer.data import splits
from trainer.data.corpora import Corpus, Document
from trainer.data.errors import DatasetError
from trainer.data.progress import show_phase
from trainer.data.shards import PROMPT_BIT, FileWriter, ShardWriter, get_token_dtype
from trainer.data.spool import Spool
from trainer.data.tokenizer import Tokenizer, train_bpe
from trainer.data.tokenizer_spec import TokenizerSpec

FORMAT = 1
FORMAT_WITH_PROMPTS = 2  # format of a dataset in which some documents begin with a prompt
MANIFEST = "manifest.json"
SAMPLE_BYTES = 2 << 10  # bytes of text per entry of a tokenizer to train it on, spread over the train split
TOKENIZER_BATCH = 2 << 20  # characters of text tokenized at once
Advance = Callable[[int], None]  # called with a number of bytes of text
EncodedDocument = tuple[Document, list[int]]  # ids of a prompt have `PROMPT_BIT`
SPLITS = {"train": splits.TRAIN, "dev": splits.DEV, "test": splits.TEST}


def build_dataset(
    folder: Path, corpus: Corpus, spec: TokenizerSpec, limit_bytes: int | None, origin: dict[str, Any], console: Console
) -> None:
    """Build the dataset at `folder`, which must be absent or empty. The caller holds the lock.

    `origin` is copied into the manifest: the corpus's spec, the limit and the cache key.
    """
    partial = folder.with_name(f".{folder.name}.preparing")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    try:
        partial.mkdir(parents=True)
        _write_dataset(partial, corpus, spec, limit_bytes, origin, console)
        partial.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:  # full disk, quota
        raise DatasetError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_dataset(
    folder: Path, corpus: Corpus, spec: TokenizerSpec, limit_bytes: int | None, origin: dict[str, Any], console: Console
) -> None:
    work = folder / "spool"
    work.mkdir()
    with Spool(work / "documents") as documents, Spool(work / "pieces") as pieces:
        _spool_corpus(documents, corpus, limit_bytes, console)
        spool, assignment = _assign_splits(documents, pieces)
        tokenizer = spec.tokenizer or _train_tokenizer(spool, assignment, spec, console)
        tokenizer.save(folder / "tokenizer.json")
        dtype = get_token_dtype(tokenizer.vocabulary_size, documents.has_prompts)
        rows = _tokenize_splits(folder, spool, assignment, tokenizer, dtype, console)
    shutil.rmtree(work)
    manifest = {
        "format": FORMAT_WITH_PROMPTS if documents.has_prompts else FORMAT,
        **origin,
        "tokenizer": {
            "spec": spec.text,
            "vocabulary_size": tokenizer.vocabulary_size,
            "end_of_text": tokenizer.end_of_text,
            "sha256": tokenizer.sha256,
        },
        "splits": rows,
    }
    manifest["hash"] = compute_content_hash(manifest)
    with FileWriter(folder / MANIFEST) as writer:
        writer.write(json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n")
        writer.finish()


def compute_content_hash(manifest: dict[str, Any]) -> str:
    """Return the sha256 of tokenizer, counts and shard hashes. Specs, paths and times do not change it."""
    content = {
        "format": manifest["format"],
        "tokenizer": manifest["tokenizer"]["sha256"],
        "end_of_text": manifest["tokenizer"]["end_of_text"],
        "splits": {
            name: {
                "documents": split["documents"],
                "tokens": split["tokens"],
                "bytes": split["bytes"],
                "shards": [
                    [shard["path"], shard["tokens"], shard["size"], shard["sha256"]] for shard in split["shards"]
                ],
            }
            for name, split in manifest["splits"].items()
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _spool_corpus(spool: Spool, corpus: Corpus, limit_bytes: int | None, console: Console) -> None:
    with show_phase(console, "Reading the corpus", limit_bytes) as phase:
        for document in corpus.documents():
            limit = None if limit_bytes is None else limit_bytes - phase.done
            phase.advance(spool.add(document, limit))
            if phase.done == limit_bytes:
                break


def _assign_splits(documents: Spool, pieces: Spool) -> tuple[Spool, np.ndarray]:
    """Return a spool and the split of each of its documents. Cut them into `pieces` where they are too long."""
    total = int(documents.lengths.sum())
    if total < splits.SMALLEST_CORPUS:
        raise DatasetError(f"A dataset needs at least {splits.SMALLEST_CORPUS} bytes of text; this corpus has {total}")
    assignment = splits.assign_splits(documents.keys, documents.lengths)
    if assignment is not None:
        return documents, assignment
    size = max(splits.SMALLEST_PIECE, total // splits.PIECES)
    for number in range(len(documents)):
        for piece in splits.cut_document(documents.read_document(number), size):
            pieces.add(piece)
    assignment = splits.assign_splits(pieces.keys, pieces.lengths)
    if assignment is None:
        raise DatasetError("The corpus repeats itself: without duplicates it cannot be split into three parts")
    return pieces, assignment


def _train_tokenizer(spool: Spool, assignment: np.ndarray, spec: TokenizerSpec, console: Console) -> Tokenizer:
    assert spec.train_size is not None
    numbers = np.flatnonzero(assignment == splits.TRAIN)
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


def _tokenize_splits(
    folder: Path, spool: Spool, assignment: np.ndarray, tokenizer: Tokenizer, dtype: np.dtype[Any], console: Console
) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    with show_phase(console, "Tokenizing", int(spool.lengths.sum())) as phase:
        for split, code in SPLITS.items():
            numbers = np.flatnonzero(assignment == code)
            batches = batch_documents(spool.iterate_documents(numbers))
            encoded = _encode_documents(batches, tokenizer, phase.advance)
            shards = (
                _write_documents(folder, split, encoded)
                if split == "test"
                else _write_tokens(folder, split, encoded, tokenizer.end_of_text, dtype)
            )
            rows[split] = {
                "documents": len(numbers),
                "tokens": sum(shard["tokens"] for shard in shards),
                "bytes": int(spool.lengths[numbers].sum()),
                "shards": shards,
            }
    return rows


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


def _write_tokens(
    folder: Path, split: str, encoded: Iterator[EncodedDocument], end_of_text: int, dtype: np.dtype[Any]
) -> list[dict[str, Any]]:
    """Write packed tokens, each document after an end-of-text token."""
    with ShardWriter(folder, split, dtype) as writer:
        for _, ids in encoded:
            writer.add([end_of_text, *ids])
        return writer.finish()


def _write_documents(folder: Path, split: str, encoded: Iterator[EncodedDocument]) -> list[dict[str, Any]]:
    """Write text, since the scorer is independent of the tokenizer. Tokens are counted as in the other splits."""
    path, tokens = f"{split}/documents.jsonl", 0
    with FileWriter(folder / path) as writer:
        for document, ids in encoded:
            line = json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False)
            writer.write(line.encode() + b"\n")
            tokens += 1 + len(ids)
        return [{"path": path, "tokens": tokens, "size": writer.size, "sha256": writer.finish()}]


def _encode_documents(
    batches: Iterator[list[Document]], tokenizer: Tokenizer, advance: Advance
) -> Iterator[EncodedDocument]:
    """Yield each document with its ids. A prompt is encoded separately, as at inference."""
    for batch in batches:
        ids = iter(tokenizer.encode_batch([part for document in batch for part in _split_prompt(document)]))
        for document in batch:
            prompt = next(ids) if document.prompt_length else []
            yield document, [*(token | PROMPT_BIT for token in prompt), *next(ids)]
            advance(len(document.text.encode()))


def _split_prompt(document: Document) -> tuple[str, ...]:
    text, end = document.text, document.prompt_length
    return (text[:end], text[end:]) if end else (text,)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
