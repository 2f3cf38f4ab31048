"""A file of documents in their order, without duplicates, that survives the death of its writer.

A corpus may come from the network or an archive and is read three times (to split it, to train the tokenizer on a
sample, to tokenize it), so it is stored once. `SpoolWriter.save` makes everything so far durable, together with the
position in the corpus; a new writer drops what was written after it and continues there. The writer takes about 70
bytes of memory a document. Among ten million documents two different texts share a key with a probability of about 3
in a million; the second one is then dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.corpora import Document
from trainer.data.shards import write_file

RECORD = np.dtype(
    [("offset", "<u8"), ("id_length", "<u4"), ("length", "<u8"), ("prompt_length", "<u8"), ("key", "<u8")]
)
"""An entry of the index: offset of the id in the file, bytes of the id and of the text that follows it, characters of
the prompt, and the first 8 bytes of the text's sha256."""


class SpoolWriter:
    """Append documents. `size`, the bytes of text so far, and `position` are those of the last `save` at first."""

    def __init__(self, path: Path) -> None:
        self._state_path = path.with_suffix(".json")
        state = json.loads(self._state_path.read_bytes()) if self._state_path.exists() else {}
        self.is_complete: bool = state.get("complete", False)
        self.position: dict[str, Any] | None = state.get("position")
        self._end: int = state.get("end", 0)
        documents: int = state.get("documents", 0)
        index = path.with_suffix(".index")
        records = np.fromfile(index, RECORD, documents) if documents else np.empty(0, RECORD)
        self.size = int(records["length"].sum())
        self.duplicates: int = state.get("duplicates", 0)  # documents that were not added
        self._seen: set[int] = set(records["key"].tolist())
        self._pending: list[tuple[int, int, int, int, int]] = []
        self._documents = documents
        self.has_split_character = False  # whether a document was cut inside a character, which was then dropped
        self._data, self._index = _open_at(path, self._end), _open_at(index, documents * RECORD.itemsize)

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()
        self._index.close()

    def add(self, document: Document, max_bytes: int | None = None) -> int:
        """Append a document, cut to `max_bytes` bytes, unless it is a duplicate. Return the bytes that were added."""
        text = document.text.encode()
        if max_bytes is not None and len(text) > max_bytes:
            text = text[:max_bytes].decode(errors="ignore").encode()  # drops a split character
            self.has_split_character = len(text) < max_bytes
        key = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
        if not text or key in self._seen:
            self.duplicates += bool(text)
            return 0
        self._seen.add(key)
        name = document.id.encode()
        self._data.write(name)
        self._data.write(text)
        self._pending.append((self._end, len(name), len(text), document.prompt_length, key))
        self._end += len(name) + len(text)
        self.size += len(text)
        return len(text)

    def save(self, position: dict[str, Any] | None, *, complete: bool = False) -> None:
        """Make all documents durable, with the position in the corpus after the last one."""
        self._index.write(np.array(self._pending, RECORD).tobytes())
        self._documents += len(self._pending)
        self._pending.clear()
        for stream in (self._data, self._index):
            stream.flush()
            os.fsync(stream.fileno())
        state = {"documents": self._documents, "end": self._end, "position": position, "complete": complete}
        write_file(self._state_path, json.dumps({**state, "duplicates": self.duplicates}).encode())


def _open_at(path: Path, size: int) -> Any:
    """Open a file to append after its first `size` bytes."""
    stream = path.open("r+b" if size else "w+b")
    stream.truncate(size)
    stream.seek(size)
    return stream


class Spool:
    """Read the documents of a complete spool by number."""

    def __init__(self, path: Path) -> None:
        index = path.with_suffix(".index")
        self.path = path
        self._records = np.memmap(index, RECORD, "r") if index.stat().st_size else np.empty(0, RECORD)
        self._stream = path.open("rb")
        self.duplicates: int = json.loads(path.with_suffix(".json").read_bytes()).get("duplicates", 0)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def keys(self) -> np.ndarray:
        """The first 8 bytes of each text's sha256, [N] uint64."""
        return np.array(self._records["key"])

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of UTF-8 of each text, [N] uint64."""
        return np.array(self._records["length"])

    @property
    def has_prompts(self) -> bool:
        return bool(self._records["prompt_length"].any())

    def read_document(self, number: int, limit: int = -1) -> Document:
        """Read a document, or at most `limit` bytes of its text."""
        offset, id_length, length, prompt_length, _ = self._records[number].tolist()
        self._stream.seek(offset)
        name = self._stream.read(id_length).decode()
        content = self._stream.read(min(length, limit) if limit >= 0 else length)
        text = content.decode(errors="strict" if limit < 0 else "ignore")  # a limit may split a character
        return Document(name, text, min(prompt_length, len(text)))

    def iterate_documents(self, numbers: np.ndarray) -> Iterator[Document]:
        return (self.read_document(int(number)) for number in numbers)
