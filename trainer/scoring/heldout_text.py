"""The tokenized text that a model is scored on: every document of a corpus, or the test split of a dataset.

The test split of a dataset is a share of its documents that training never gets. A season scores a sample of it, drawn
by a secret: an entry knows the text that may be drawn, and not the sample.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpora import Document, open_corpus
from trainer.data.dataset import Dataset, iterate_test_documents
from trainer.data.tokenization import batch_documents
from trainer.data.tokenizer import Tokenizer
from trainer.errors import DatasetError, UserError
from trainer.protocol.files import hash_file


class NoTextError(UserError):
    """The dataset has no text to score."""


@dataclass(frozen=True)
class EncodedDocument:
    """A tokenized held-out document."""

    tokens: NDArray[np.int64]
    size: int  # bytes of UTF-8 that the tokens encode


def load_corpus(spec: str, tokenizer: Tokenizer, limit_tokens: int | None) -> list[EncodedDocument]:
    """Return all documents of a corpus, in its order."""
    return encode_documents(open_corpus(spec), tokenizer, limit_tokens)


def load_test_split(dataset: Dataset, limit_tokens: int | None) -> list[EncodedDocument]:
    """Return the dataset's test documents in the public order."""
    return encode_documents(draw_test_documents(dataset), dataset.tokenizer, limit_tokens)


def draw_test_documents(dataset: Dataset, secret: bytes | None = None) -> list[Document]:
    """Return the dataset's test documents in an order whose first ones are a fixed, uniform sample.

    The order is that of HMAC-SHA256(secret, text), or the public one of SHA-256(text).
    """
    for shard in dataset.manifest["splits"]["test"]["shards"] if dataset.has_test else ():
        if hash_file(dataset.folder / shard["path"]) != shard["sha256"]:
            raise DatasetError(f"{dataset.folder / shard['path']} is damaged: its sha256 is not the manifest's")

    def compute_rank(document: Document) -> bytes:
        text = document.text.encode()
        return hashlib.sha256(text).digest() if secret is None else hmac.digest(secret, text, "sha256")

    return sorted(iterate_test_documents(dataset), key=compute_rank)


def encode_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, limit_tokens: int | None
) -> list[EncodedDocument]:
    """Return whole documents, the last one cut at the limit. Raise `NoTextError`."""
    lengths = tokenizer.byte_lengths()
    encoded: list[EncodedDocument] = []
    remaining = limit_tokens if limit_tokens is not None else 2**62
    for batch in batch_documents(documents):
        for document, ids in zip(batch, tokenizer.encode_batch([document.text for document in batch]), strict=True):
            tokens = np.array(ids, np.int64)
            size = int(lengths[tokens].sum())
            # Bits per byte is only fair if the tokens encode every byte.
            assert size == len(document.text.encode()), "byte-level tokenizers are lossless"
            if len(tokens):
                encoded.append(EncodedDocument(tokens[:remaining], int(lengths[tokens[:remaining]].sum())))
            remaining -= len(tokens)
            if remaining <= 0:
                return encoded
    if not encoded:
        raise NoTextError("There is no text to score: the documents are empty.")
    return encoded
