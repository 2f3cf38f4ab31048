"""Files of a dataset: the manifest, and token ids, flat little-endian uint16 or uint32, read at any offset."""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import DamagedDatasetError

SPLITS = ("train", "dev", "test")
FORMAT = 1
FORMAT_WITH_PROMPTS = 2  # format of a dataset in which some documents begin with a prompt
PREPARATION_VERSION = 2
"""Part of the cache's key. Increase it when the same request would give other bytes (`SAMPLE_BYTES`, `SHARD_TEXT`,
splits), or when the files of a temporary folder change."""
MANIFEST = "manifest.json"
PROMPT_BIT = 1 << 31  # set in the tokens of a prompt, which carry no loss


def get_token_dtype(vocabulary_size: int, has_prompts: bool = False) -> np.dtype[Any]:
    """Return the type of tokens on disk. `has_prompts`: some tokens have `PROMPT_BIT`."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 and not has_prompts else "<u4")


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


class FileWriter:
    """Write one file, count and hash its bytes, and flush it to disk."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("wb")
        self._digest = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self.size += len(data)

    def finish(self) -> str:
        """Flush and close the file; return its sha256."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        return self._digest.hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, also if the power fails."""
    partial = path.with_name(f".{path.name}.partial")
    with FileWriter(partial) as writer:
        writer.write(data)
        writer.finish()
    partial.replace(path)


class Shard:
    """The tokens of one file, read on demand: `shard[start:stop]` returns an array.

    Not a memory map: reading a map of a truncated file or from a failing disk kills the process (SIGBUS), while `pread`
    raises DamagedDatasetError. The file is opened for each read, which takes a few microseconds: a large corpus has
    more files than a process may have open.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], tokens: int) -> None:
        self._path, self.dtype, self._tokens = path, dtype, tokens

    def __len__(self) -> int:
        return self._tokens

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, step = part.indices(self._tokens)
        assert step == 1
        size = max(0, stop - start) * self.dtype.itemsize
        try:
            with self._path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), size, start * self.dtype.itemsize)
        except OSError as error:
            raise DamagedDatasetError(self._path, f"cannot be read ({error.strerror or error})") from error
        if len(data) != size:
            raise DamagedDatasetError(self._path, "is damaged: it was cut short while it was in use")
        return np.frombuffer(data, dtype=self.dtype)


class TokenStream:
    """The tokens of several shards as one sequence, read on demand."""

    def __init__(self, arrays: Sequence[np.ndarray | Shard]) -> None:
        self._arrays = list(arrays)
        self._starts = [0]
        for array in self._arrays:
            self._starts.append(self._starts[-1] + len(array))

    def __len__(self) -> int:
        return self._starts[-1]

    def read_tokens(self, start: int, length: int) -> np.ndarray:
        """Return [length] int64, with `PROMPT_BIT` in tokens of a prompt. The range must lie inside the stream."""
        assert 0 <= start <= len(self) - length
        tokens = np.empty(length, dtype=np.int64)
        done, shard = 0, bisect_right(self._starts, start) - 1
        while done < length:
            begin = start + done - self._starts[shard]
            part = self._arrays[shard][begin : begin + length - done]
            tokens[done : done + len(part)] = part
            done, shard = done + len(part), shard + 1
        return tokens
