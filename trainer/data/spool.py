"""A temporary file of documents in their order, without duplicates.

A corpus may come from the network or an archive and is read three times (to split it, to train the tokenizer on a
sample, to tokenize it), so it is stored once. Each document takes about 150 bytes of memory. Among ten million
documents two different texts share a key with a probability of about 3 in a million; the second one is then dropped.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainer.data.corpora.document import Document


class Spool:
    """Append documents, then read them by number."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w+b")
        self._offsets = array("Q")  # of the id; the text follows it
        self._id_lengths = array("L")
        self._lengths = array("Q")
        self._prompt_lengths = array("Q")
        self._keys = array("Q")
        self._seen: set[int] = set()  # keys
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def keys(self) -> np.ndarray:
        """The first 8 bytes of each text's sha256, [N] uint64."""
        return np.array(self._keys, dtype=np.uint64)

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of UTF-8 of each text, [N] uint64."""
        return np.array(self._lengths, dtype=np.uint64)

    @property
    def has_prompts(self) -> bool:
        return any(self._prompt_lengths)

    def add(self, document: Document, max_bytes: int | None = None) -> int:
        """Append a document, cut to `max_bytes` bytes, unless it is a duplicate. Return the bytes that were added."""
        text = document.text.encode()
        if max_bytes is not None and len(text) > max_bytes:
            text = text[:max_bytes].decode(errors="ignore").encode()  # drops a split character
        key = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
        if not text or key in self._seen:
            return 0
        self._seen.add(key)
        name = document.id.encode()
        self._stream.write(name)
        self._stream.write(text)
        self._offsets.append(self._end)
        self._id_lengths.append(len(name))
        self._lengths.append(len(text))
        self._prompt_lengths.append(document.prompt_length)
        self._keys.append(key)
        self._end += len(name) + len(text)
        return len(text)

    def read_document(self, number: int, limit: int = -1) -> Document:
        """Read a document, or at most `limit` bytes of its text."""
        self._stream.seek(self._offsets[number])
        name = self._stream.read(self._id_lengths[number]).decode()
        length = self._lengths[number]
        content = self._stream.read(min(length, limit) if limit >= 0 else length)
        text = content.decode(errors="strict" if limit < 0 else "ignore")  # a limit may split a character
        return Document(name, text, min(self._prompt_lengths[number], len(text)))

    def iterate_documents(self, numbers: np.ndarray) -> Iterator[Document]:
        return (self.read_document(int(number)) for number in numbers)
