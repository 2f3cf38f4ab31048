"""Files by content, and what is made of them: checkpoints, base weights, datasets."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainer.protocol.version import Message

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileRef(Message):
    """A file by content. Its bytes are at `GET /api/node/v1/leases/<lease>/blobs/<sha256>`.

    After a break `Range: bytes=<first>-` asks for the rest; whoever does not know ranges sends all of them again.
    """

    path: str = Field(max_length=200)
    """Where it belongs, relative to the folder it is part of; forward slashes, never `..`."""
    sha256: Sha256
    size: int = Field(ge=0)


class Checkpoint(Message):
    """All it takes to go on, or to re-score: the files of one folder `checkpoints/step-XXXXXXXX`."""

    step: int = Field(ge=0)
    files: tuple[FileRef, ...]


class BaseWeights(Message):
    """Weights that a run starts from: what another run ended with."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """What `run.json` calls it, under `from`."""
    run: FileRef
    """Its `run.json`."""
    checkpoint: Checkpoint


class DatasetPin(Message):
    """A dataset by name and by hash. A node whose copy has another hash refuses the job."""

    corpus: str
    """`python-library`, `fineweb-edu` or `files:<glob>`."""
    tokenizer: str
    """`bpe:<vocabulary size>` (trained on the corpus), `gpt2:<folder>` or a `tokenizer.json`."""
    limit_bytes: int | None = None
    """Only this much text is taken from the start of the corpus; None takes all."""
    hash: Sha256
