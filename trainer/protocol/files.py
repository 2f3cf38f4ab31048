"""Content-addressed files, and what consists of them: checkpoints, base weights, datasets."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from trainer.protocol.version import Count, Message, Name

HOST_PATTERN = r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.){1,8}[a-z]{2,63}$"
HostName = Annotated[str, Field(pattern=HOST_PATTERN)]
MAX_HOSTS = 50  # of a notebook
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GRAPH_FILES = ("init.json", "train.json", "eval.json", "recipe.json")
WEIGHTS_FILE = "model.safetensors"  # of a checkpoint; large weights are shards and an index instead
WEIGHTS_INDEX = "model.safetensors.index.json"
SHARD_NAME = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")
OPTIMIZER_FILE = "optimizer.pt"  # the larger part of a checkpoint, which only resuming needs
STATE_FILE = "state.json"
CHECKPOINTS_FOLDER = "checkpoints"
RUN_FILE = "run.json"  # of a run: its architecture and configuration


def build_checkpoint_path(step: int) -> str:
    """Return the folder of a step's checkpoint, relative to its run's folder."""
    return f"{CHECKPOINTS_FOLDER}/step-{step:08d}"


def is_weights_file(name: str) -> bool:
    """Return whether a file of a checkpoint holds weights, or is the index of those that do."""
    return name in (WEIGHTS_FILE, WEIGHTS_INDEX) or SHARD_NAME.fullmatch(name) is not None


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileRef(Message):
    """A file by content. Its bytes are at `GET /api/node/v1/leases/<lease>/blobs/<sha256>`.

    An interrupted download resumes with `Range: bytes=<first>-`; a server without ranges sends the whole file.
    """

    path: str = Field(max_length=200)  # relative to the folder that the file is part of; forward slashes, no `..`
    sha256: Sha256
    size: Count


class Checkpoint(Message):
    """The files of one folder `checkpoints/step-XXXXXXXX`: enough to score, and with `OPTIMIZER_FILE` to resume."""

    step: Count
    files: tuple[FileRef, ...] = Field(max_length=20_000)
    milestone: int | None = Field(default=None, ge=1, le=99)
    """Percent of the budget at which these weights (bf16, without `OPTIMIZER_FILE`) are kept. None: a checkpoint to
    resume from, or the final one."""


class BaseWeights(Message):
    """The final weights of another run, as a starting point."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")  # its name in `run.json`, under `from`
    run: FileRef  # its `run.json`
    checkpoint: Checkpoint


class GraphFiles(Message):
    """The files of a traced architecture (`trainer.graph`), and the hash that identifies it."""

    hash: Sha256  # SHA-256 over the hexadecimal hashes of the files, in the order of `GRAPH_FILES`
    files: tuple[FileRef, ...] = Field(max_length=len(GRAPH_FILES))

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

    corpus: Name  # `python-docs`, `fineweb-edu` or `files:<glob>`
    tokenizer: Name  # `bpe:<vocabulary size>` (trained on the corpus), `gpt2:<folder>` or a `tokenizer.json`
    limit_bytes: Count | None = None  # use only this much text from the start of the corpus; None: all
    hash: Sha256
    files: tuple[FileRef, ...] | None = Field(default=None, max_length=20_000)
