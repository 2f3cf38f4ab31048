"""The text a model is scored on, in tokens: every document of a corpus, or the test split of a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpora import Document, open_corpus
from trainer.data.dataset import Dataset, iterate_test_documents
from trainer.data.errors import DatasetError
from trainer.data.tokenizer import Tokenizer
from trainer.scoring.run_folder import compute_sha256

BATCH_BYTES = 2**22
"""Text that is encoded at a time."""


class NoTextError(ValueError):
    """There is no text to score."""


@dataclass(frozen=True)
class EncodedDocument:
    """A held-out document, in tokens."""

    tokens: NDArray[np.int64]
    size: int
    """Bytes of UTF-8 that the tokens stand for."""


def load_corpus(spec: str, tokenizer: Tokenizer, limit_tokens: int | None) -> list[EncodedDocument]:
    """All documents of a corpus, in its order."""
    return encode_documents(open_corpus(spec), tokenizer, limit_tokens)


def load_test_split(dataset: Dataset, limit_tokens: int | None) -> list[EncodedDocument]:
    """The dataset's test documents, ordered by their SHA-256: a limit takes an even and always the same sample."""
    for shard in dataset.manifest["splits"]["test"]["shards"] if dataset.has_test else ():
        if compute_sha256(dataset.folder / shard["path"]) != shard["sha256"]:
            raise DatasetError(f"{dataset.folder / shard['path']} is damaged: its sha256 is not the manifest's")
    documents = sorted(
        iterate_test_documents(dataset), key=lambda document: hashlib.sha256(document.text.encode()).digest()
    )
    return encode_documents(documents, dataset.tokenizer, limit_tokens)


def encode_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, limit_tokens: int | None
) -> list[EncodedDocument]:
    """Whole documents; only the last one is cut, where the limit falls. Raises `NothingToScore`."""
    lengths = tokenizer.byte_lengths()
    found: list[EncodedDocument] = []
    left = limit_tokens if limit_tokens is not None else 2**62
    for batch in _batches(documents):
        for document, ids in zip(batch, tokenizer.encode_batch([document.text for document in batch]), strict=True):
            tokens = np.array(ids, np.int64)
            size = int(lengths[tokens].sum())
            # What the tokens lose would not be paid for: a score in bits per byte needs them to stand for every byte.
            assert size == len(document.text.encode()), "byte-level tokenizers keep every byte"
            if len(tokens):
                found.append(EncodedDocument(tokens[:left], int(lengths[tokens[:left]].sum())))
            left -= len(tokens)
            if left <= 0:
                return found
    if not found:
        raise NoTextError("There is no text to score: the documents are empty.")
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
