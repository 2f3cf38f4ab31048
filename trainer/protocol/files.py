"""Content-addressed files, and what consists of them: checkpoints, base weights, datasets."""

from __future__ import annotations

import hashlib
from typing import Annotated, Self

from pydantic import Field, model_validator

from trainer.protocol.version import Message

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GRAPH_FILES = ("init.json", "train.json", "eval.json", "recipe.json")


class FileRef(Message):
    """A file by content. Its bytes are at `GET /api/node/v1/leases/<lease>/blobs/<sha256>`.

    An interrupted download resumes with `Range: bytes=<first>-`; a server without ranges sends the whole file.
    """

    path: str = Field(max_length=200)  # relative to the folder that the file is part of; forward slashes, no `..`
    sha256: Sha256
    size: int = Field(ge=0)


class Checkpoint(Message):
    """The files of one folder `checkpoints/step-XXXXXXXX`: enough to resume or to score."""

    step: int = Field(ge=0)
    files: tuple[FileRef, ...]


class BaseWeights(Message):
    """The final weights of another run, as a starting point."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")  # its name in `run.json`, under `from`
    run: FileRef  # its `run.json`
    checkpoint: Checkpoint


class GraphFiles(Message):
    """The files of a traced architecture (`trainer.graph`), and the hash that identifies it."""

    hash: Sha256  # SHA-256 over the hexadecimal hashes of the files, in the order of `GRAPH_FILES`
    files: tuple[FileRef, ...]

    @model_validator(mode="after")
    def _check_hash(self) -> Self:
        if tuple(file.path for file in self.files) != GRAPH_FILES:
            raise ValueError(f"the files of a graph are {', '.join(GRAPH_FILES)}")
        if self.hash != hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest():
            raise ValueError("the hash of the graph is not that of its files")
        return self


class DatasetPin(Message):
    """A dataset by name and hash. A node whose copy has another hash rejects the job.

    A node downloads the files that the job needs. Without files it prepares the dataset itself.
    """

    corpus: str  # `python-library`, `fineweb-edu` or `files:<glob>`
    tokenizer: str  # `bpe:<vocabulary size>` (trained on the corpus), `gpt2:<folder>` or a `tokenizer.json`
    limit_bytes: int | None = None  # use only this much text from the start of the corpus; None: all
    hash: Sha256
    files: tuple[FileRef, ...] | None = Field(default=None, max_length=20_000)
