"""The text a model is scored on, in tokens: every document of a corpus, or the test split of a dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpora import Document, open_corpus
from trainer.data.tokenizer import Tokenizer

BATCH_BYTES = 2**22
"""Text that is encoded at a time."""


class NothingToScore(ValueError):
    """There is no text to score."""


@dataclass(frozen=True)
class Text:
    """A held-out document, in tokens."""

    tokens: NDArray[np.int64]
    size: int
    """Bytes of UTF-8 that the tokens stand for."""


def of_corpus(spec: str, tokenizer: Tokenizer, limit_tokens: int | None) -> list[Text]:
    """All documents of a corpus, in its order."""
    return texts(open_corpus(spec), tokenizer, limit_tokens)


def of_dataset(folder: Path, tokenizer: Tokenizer, limit_tokens: int | None) -> list[Text]:
    """The dataset's test documents, ordered by their SHA-256: a limit takes an even and always the same sample."""
    documents = sorted(read_documents(folder / "test" / "documents.jsonl"), key=_fingerprint)
    return texts(documents, tokenizer, limit_tokens)


def _fingerprint(document: Document) -> bytes:
    return hashlib.sha256(document.text.encode()).digest()


def read_documents(path: Path) -> Iterator[Document]:
    """Lines of `{"id", "text"}`."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError:
        raise NothingToScore(f"{path} is missing or cannot be read: this dataset has no test split here.") from None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = json.loads(line)
            yield Document(str(record["id"]), str(record["text"]))
        except (ValueError, TypeError, KeyError):
            raise NothingToScore(f"{path}, line {number}, is not a document.") from None


def texts(documents: Iterable[Document], tokenizer: Tokenizer, limit_tokens: int | None) -> list[Text]:
    """Whole documents; only the last one is cut, where the limit falls. Raises `NothingToScore`."""
    lengths = tokenizer.byte_lengths()
    found: list[Text] = []
    left = limit_tokens if limit_tokens is not None else 2**62
    for batch in _batches(documents):
        for document, ids in zip(batch, tokenizer.encode_batch([document.text for document in batch]), strict=True):
            tokens = np.array(ids, np.int64)
            size = int(lengths[tokens].sum())
            # What the tokens lose would not be paid for: a score in bits per byte needs them to stand for every byte.
            assert size == len(document.text.encode()), "byte-level tokenizers keep every byte"
            if len(tokens):
                found.append(Text(tokens[:left], int(lengths[tokens[:left]].sum())))
            left -= len(tokens)
            if left <= 0:
                return found
    if not found:
        raise NothingToScore("There is no text to score: the documents are empty.")
    return found


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
