"""From a corpus to a dataset folder: read and spool, split, train the tokenizer, tokenise, and the manifest last.

Everything goes into a folder beside the destination, which takes its name in one rename at the end: a dataset folder
is whole or not there. Memory is bounded by the longest document (16 MiB for plain text) and a batch of 2 MiB.
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

from trainer.data import splits
from trainer.data.corpora import Corpus, Document
from trainer.data.progress import Reporter
from trainer.data.shards import GIVEN, DatasetError, FileWriter, ShardWriter, token_type
from trainer.data.spool import Spool
from trainer.data.tokenizer import Tokenizer, TokenizerSpec, train_bpe

FORMAT = 1
PROMPTED = 2
"""The format of a dataset in which some documents begin with a prompt."""
MANIFEST = "manifest.json"
SAMPLE = 4 << 20  # bytes of text that a tokenizer is trained on, spread over the train split
BATCH = 2 << 20  # bytes of text tokenised at once
Advance = Callable[[int], None]  # called with bytes of text done
Encoded = tuple[Document, list[int]]  # with `GIVEN` in the ids of its prompt
SPLITS = {"train": splits.TRAIN, "dev": splits.DEV, "test": splits.TEST}


def build(
    folder: Path,
    corpus: Corpus,
    spec: TokenizerSpec,
    limit_bytes: int | None,
    about: dict[str, Any],
    reporter: Reporter,
) -> None:
    """Make the dataset at `folder`, which must be absent or empty. The caller holds the lock.

    `about` goes into the manifest as it is: the corpus's spec, the limit and the cache key.
    """
    aside = folder.with_name(f".{folder.name}.preparing")
    shutil.rmtree(aside, ignore_errors=True)  # of a preparation that died
    try:
        aside.mkdir(parents=True)
        _write(aside, corpus, spec, limit_bytes, about, reporter)
        aside.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:  # a full disk, a quota
        raise DatasetError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(
    folder: Path,
    corpus: Corpus,
    spec: TokenizerSpec,
    limit_bytes: int | None,
    about: dict[str, Any],
    reporter: Reporter,
) -> None:
    work = folder / "spool"
    work.mkdir()
    with Spool(work / "documents") as documents, Spool(work / "pieces") as pieces:
        _read(documents, corpus, limit_bytes, reporter)
        spool, assigned = _split(documents, pieces)
        tokenizer = spec.given or _train_tokenizer(spool, assigned, spec, reporter)
        tokenizer.save(folder / "tokenizer.json")
        dtype = token_type(tokenizer.vocabulary_size, documents.prompted)
        rows = _tokenise(folder, spool, assigned, tokenizer, dtype, reporter)
    shutil.rmtree(work)
    manifest = {
        "format": PROMPTED if documents.prompted else FORMAT,
        **about,
        "tokenizer": {
            "spec": spec.text,
            "vocabulary_size": tokenizer.vocabulary_size,
            "end_of_text": tokenizer.end_of_text,
            "sha256": tokenizer.sha256,
        },
        "splits": rows,
    }
    manifest["hash"] = content_hash(manifest)
    with FileWriter(folder / MANIFEST) as writer:
        writer.write(json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n")
        writer.finish()


def content_hash(manifest: dict[str, Any]) -> str:
    """sha256 of what decides the content: tokenizer, counts and the shards' hashes. No spec, path or time."""
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


def _read(spool: Spool, corpus: Corpus, limit_bytes: int | None, reporter: Reporter) -> None:
    with reporter.phase("Reading the corpus", limit_bytes) as phase:
        for document in corpus.documents():
            room = None if limit_bytes is None else limit_bytes - phase.done
            phase.advance(spool.add(document, room))
            if phase.done == limit_bytes:
                break


def _split(documents: Spool, pieces: Spool) -> tuple[Spool, np.ndarray]:
    """The documents, or the pieces they had to be cut into, and the split of each."""
    total = int(documents.lengths.sum())
    if total < splits.SMALLEST_CORPUS:
        raise DatasetError(f"A dataset needs at least {splits.SMALLEST_CORPUS} bytes of text; this corpus has {total}")
    assigned = splits.assign(documents.keys, documents.lengths)
    if assigned is not None:
        return documents, assigned
    size = max(splits.SMALLEST_PIECE, total // splits.PIECES)
    for number in range(len(documents)):
        for piece in splits.cut(documents.read(number), size):
            pieces.add(piece)
    assigned = splits.assign(pieces.keys, pieces.lengths)
    if assigned is None:
        raise DatasetError("The corpus repeats itself: what is left without copies cannot be split into three parts")
    return pieces, assigned


def _train_tokenizer(spool: Spool, assigned: np.ndarray, spec: TokenizerSpec, reporter: Reporter) -> Tokenizer:
    assert spec.train_size is not None
    numbers = np.flatnonzero(assigned == splits.TRAIN)
    with reporter.phase("Training the tokenizer", min(SAMPLE, int(spool.lengths[numbers].sum()))) as phase:
        return train_bpe(_counted(_sample(spool, numbers), phase.advance), spec.train_size)


def _counted(texts: Iterable[str], advance: Advance) -> Iterator[str]:
    for text in texts:
        advance(len(text))
        yield text


def _sample(spool: Spool, numbers: np.ndarray) -> Iterator[str]:
    """About SAMPLE bytes, spread evenly: from each document its share, and a short document whole or not at all."""
    lengths = spool.lengths
    share = min(1.0, SAMPLE / int(lengths[numbers].sum()))
    passed = taken = 0
    for number in map(int, numbers):
        passed += int(lengths[number])
        if (quota := round(passed * share) - taken) > 0:
            quota = min(max(quota, 4 << 10), int(lengths[number]))
            taken += quota
            yield spool.read(number, quota).text


def _tokenise(
    folder: Path,
    spool: Spool,
    assigned: np.ndarray,
    tokenizer: Tokenizer,
    dtype: np.dtype[Any],
    reporter: Reporter,
) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    with reporter.phase("Tokenising", int(spool.lengths.sum())) as phase:
        for split, code in SPLITS.items():
            numbers = np.flatnonzero(assigned == code)
            batches = _batches(spool, numbers)
            encoded = _encoded(batches, tokenizer, phase.advance)
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


def _batches(spool: Spool, numbers: np.ndarray) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in spool.documents(numbers):
        batch.append(document)
        size += len(document.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_tokens(
    folder: Path, split: str, encoded: Iterator[Encoded], end_of_text: int, dtype: np.dtype[Any]
) -> list[dict[str, Any]]:
    """Packed tokens: each document after an end-of-text token, which is what a model sees before any text."""
    with ShardWriter(folder, split, dtype) as writer:
        for _, ids in encoded:
            writer.add([end_of_text, *ids])
        return writer.finish()


def _write_documents(folder: Path, split: str, encoded: Iterator[Encoded]) -> list[dict[str, Any]]:
    """Text, for the scorer: it is scored whatever a model's tokenizer is. Tokens are counted as in the other splits."""
    path, tokens = f"{split}/documents.jsonl", 0
    with FileWriter(folder / path) as writer:
        for document, ids in encoded:
            line = json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False)
            writer.write(line.encode() + b"\n")
            tokens += 1 + len(ids)
        return [{"path": path, "tokens": tokens, "size": writer.size, "sha256": writer.finish()}]


def _encoded(batches: Iterator[list[Document]], tokenizer: Tokenizer, advance: Advance) -> Iterator[Encoded]:
    """Yield each document with its ids. Prompts are encoded by themselves, as they will be when the model is asked."""
    for batch in batches:
        ids = iter(tokenizer.encode_batch([part for document in batch for part in _parts(document)]))
        for document in batch:
            prompt = next(ids) if document.given else []
            yield document, [*(token | GIVEN for token in prompt), *next(ids)]
            advance(len(document.text.encode()))


def _parts(document: Document) -> tuple[str, ...]:
    text, given = document.text, document.given
    return (text[:given], text[given:]) if given else (text,)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
