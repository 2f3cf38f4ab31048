"""The scorer's view of a run's folder: plain JSON and the headers of safetensors files. Nothing is unpickled.

The node that trained the run wrote the folder, and the scorer does not trust it. Sizes are checked against limits, the
checkpoint's numbers are counted from its headers, and figures of compute are passed on as the run reports them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from trainer.checkpoint.files import list_checkpoints, open_weights
from trainer.errors import UserError
from trainer.protocol.files import hash_file, is_weights_file
from trainer.sandbox.safe_files import parse_json_object

MAX_SEQUENCE_LENGTH = 2**16  # tokens in a row
MAX_VOCABULARY_SIZE = 2**20


class RunFolderError(UserError):
    """The folder cannot be scored."""


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, validated."""

    folder: Path
    checkpoint: Path  # folder of the checkpoint to score; its files match its manifest
    arch: str
    step: int
    sequence_length: int  # tokens in a row of the full pass, as in training
    vocabulary_size: int  # logits in each position
    tokenizer_sha256: str  # from `run.json`; the caller compares it with the tokenizer it uses
    checkpoint_floats: int  # elements of the checkpoint's floating-point tensors: parameters and stored buffers
    train_tokens: float | None  # advisory: reported by the run. So are the next two.
    train_flops: float | None
    train_seconds: float | None

    @classmethod
    def open(cls, folder: Path, checkpoint: Path | None = None) -> RunFolder:
        """Read and validate a folder; `checkpoint` defaults to the last one. Raise `RunFolderError`."""
        folder = folder.resolve()
        if not folder.is_dir():
            raise RunFolderError(f"There is no run folder {folder}.")
        run = read_json_file(folder / "run.json")
        checkpoint = find_checkpoint_to_score(folder) if checkpoint is None else checkpoint.resolve()
        manifest = verify_checkpoint(checkpoint)
        tokens, flops, seconds = read_training_compute(folder, checkpoint)
        model, dataset = run.get("model"), run.get("dataset")
        if not isinstance(model, dict):
            raise RunFolderError(f"{folder / 'run.json'} does not say which model it trained.")
        return cls(
            folder=folder,
            checkpoint=checkpoint,
            arch=parse_name(run, "arch"),
            step=parse_integer(manifest, "step", 0, 2**62),
            sequence_length=parse_integer(model, "sequence_length", 1, MAX_SEQUENCE_LENGTH),
            vocabulary_size=parse_integer(model, "vocabulary_size", 2, MAX_VOCABULARY_SIZE),
            tokenizer_sha256=str(dataset.get("tokenizer_sha256", "")) if isinstance(dataset, dict) else "",
            checkpoint_floats=count_checkpoint_floats(checkpoint),
            train_tokens=tokens,
            train_flops=flops,
            train_seconds=seconds,
        )


def read_json_file(path: Path) -> dict[str, Any]:
    try:
        value = parse_json_object(path.read_bytes())
    except OSError:
        raise RunFolderError(f"{path} is missing or cannot be read.") from None
    if value is None:
        raise RunFolderError(f"{path} is not a JSON object.")
    return value


def parse_name(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value or len(value) > 200:
        raise RunFolderError(f"The run's description has no usable {key!r}.")
    return value


def parse_integer(record: dict[str, Any], key: str, minimum: int, maximum: int) -> int:
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise RunFolderError(f"The run's {key!r} must be an integer from {minimum} to {maximum}, not {value!r:.50}.")
    return value


def find_checkpoint_to_score(folder: Path) -> Path:
    """Return the complete checkpoint of the highest step (the manifest is written last)."""
    complete = list_checkpoints(folder)
    if not complete:
        raise RunFolderError(f"{folder} holds no complete checkpoint.")
    return complete[-1]


def verify_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """Return the manifest after comparing the SHA-256 of the files that it lists.

    Only the weights are required: a scoring node does not fetch the optimizer's state.
    """
    manifest = read_json_file(checkpoint / "manifest.json")
    files = manifest.get("files")
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise RunFolderError(f"{checkpoint / 'manifest.json'} does not list the checkpoint's files.")
    listed = {str(file.get("path")): str(file.get("sha256")) for file in files}
    if not any(map(is_weights_file, listed)):
        raise RunFolderError(f"{checkpoint / 'manifest.json'} lists no model.safetensors.")
    for name, sha256 in listed.items():
        path = checkpoint / name
        if Path(name).name != name:
            raise RunFolderError(f"{checkpoint / 'manifest.json'} lists a file outside the checkpoint.")
        if not path.is_file():
            if is_weights_file(name):
                raise RunFolderError(f"The checkpoint {checkpoint} has no {name}.")
            continue
        if hash_file(path) != sha256:
            raise RunFolderError(f"The checkpoint is corrupt: {path} is not the file that its manifest names.")
    return manifest


def count_checkpoint_floats(checkpoint: Path) -> int:
    """Return the numbers of all floating-point tensors; a tied tensor is stored, and counted, once.

    A number of 64 bits, such as a complex one, counts twice.
    """
    try:
        with open_weights(checkpoint, "numpy") as files:
            slices = [file.get_slice(name) for name, file in files.items()]
            factors = {"F64": 2, "C64": 2}
            return sum(
                factors.get(part.get_dtype(), 1) * math.prod(part.get_shape())
                for part in slices
                if part.get_dtype().startswith(("F", "BF", "C"))
            )
    except (SafetensorError, OSError):
        raise RunFolderError("The checkpoint is corrupt: its weights are not safetensors files.") from None


def read_training_compute(folder: Path, checkpoint: Path) -> tuple[float | None, float | None, float | None]:
    """Return (tokens, FLOPs, seconds) of the training, from the checkpoint's state or else from `result.json`."""
    if (checkpoint / "state.json").is_file():
        usage = read_json_file(checkpoint / "state.json").get("spent")
        if isinstance(usage, dict):
            return parse_amount(usage, "tokens"), parse_amount(usage, "flops"), parse_amount(usage, "seconds")
    if (folder / "result.json").is_file():
        result = read_json_file(folder / "result.json")
        tokens, flops, seconds = (parse_amount(result, key) for key in ("tokens", "train_flops", "train_seconds"))
        return tokens, flops, seconds
    return None, None, None


def parse_amount(record: dict[str, Any], key: str) -> float | None:
    """Return a finite number that is not negative, or None."""
    value = record.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return value
    return None
