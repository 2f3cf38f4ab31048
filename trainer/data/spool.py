"""Documents on their way into a dataset: on disk, in the order they came, each text once.

A corpus may come over the network or out of an archive, and is wanted three times (to split it, to train the tokenizer
on a sample, to tokenise it), so it is written down once. In memory stay about 50 bytes a document.
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
        self._offsets = array("Q")  # where the id begins; the text follows it
        self._id_lengths = array("L")
        self._lengths = array("Q")
        self._given = array("Q")
        self._keys = array("Q")
        self._seen = SeenKeys()
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def keys(self) -> np.ndarray:
        """[N] uint64: the first 8 bytes of each text's sha256."""
        return np.array(self._keys, dtype=np.uint64)

    @property
    def lengths(self) -> np.ndarray:
        """[N] uint64: bytes of UTF-8 of each text."""
        return np.array(self._lengths, dtype=np.uint64)

    @property
    def prompted(self) -> bool:
        """Whether a part of any text is given, see `Document.given`."""
        return any(self._given)

    def add(self, document: Document, room: int | None = None) -> int:
        """Write a document, cut to `room` bytes, unless its text is here already. Return the bytes it took."""
        text = document.text.encode()
        if room is not None and len(text) > room:
            text = text[:room].decode(errors="ignore").encode()  # never half a character
        key = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
        if not text or not self._seen.add(key):
            return 0
        name = document.id.encode()
        self._stream.write(name)
        self._stream.write(text)
        self._offsets.append(self._end)
        self._id_lengths.append(len(name))
        self._lengths.append(len(text))
        self._given.append(document.given)
        self._keys.append(key)
        self._end += len(name) + len(text)
        return len(text)

    def read(self, number: int, limit: int = -1) -> Document:
        """A document; with a limit, at most so many bytes of its text."""
        self._stream.seek(self._offsets[number])
        name = self._stream.read(self._id_lengths[number]).decode()
        length = self._lengths[number]
        content = self._stream.read(min(length, limit) if limit >= 0 else length)
        text = content.decode(errors="strict" if limit < 0 else "ignore")  # a limit may cut a character
        return Document(name, text, min(self._given[number], len(text)))

    def documents(self, numbers: np.ndarray) -> Iterator[Document]:
        return (self.read(int(number)) for number in numbers)


class SeenKeys:
    """A growing set of 64-bit keys at about 16 bytes each (a Python set of ints takes six times that).

    Keys are parts of cryptographic hashes, so their low bits are the place in the table. Two different texts share a
    key with a probability of about 3 in a million among ten million documents; then the second is taken for a copy.
    """

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 << 10))
        self._count = 0

    def add(self, key: int) -> bool:
        """True if the key is new."""
        key = key or 1  # 0 marks an empty place
        if 2 * self._count >= len(self._table):
            self._grow()
        place = self._place(key)
        if self._table[place] == key:
            return False
        self._table[place] = key
        self._count += 1
        return True

    def _place(self, key: int) -> int:
        mask = len(self._table) - 1
        place = key & mask
        while self._table[place] not in (0, key):
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        old, self._table = self._table, array("Q", bytes(16 * len(self._table)))
        for key in old:
            if key:
                self._table[self._place(key)] = key
