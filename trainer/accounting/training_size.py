"""Size of a training: parameters, bytes of checkpoints, and a device's memory, from a configuration alone.

Standard library only: the site uses it for the limits of its tracks. Formulas hold for the architectures in
`count_parameters`; of others the site learns the sizes when it traces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FP32, BF16 = 4, 2  # bytes of a number
GB = 10**9
VOCABULARY = 32_768  # of seasons for GPUs, where the dataset is not prepared yet
DEFAULT_GPU_SEQUENCE_LENGTH = 2048

ACTIVATIONS = {"gpt": {"fp32": 84, "bf16": 62}, "rwkv5": {"fp32": 168, "bf16": 140}}
"""Bytes that a block keeps for the backward pass, per token and channel of its input, with the bf16 copies of its
weights. Measured on a CPU with saved_tensors_hooks at depths 4 to 12, without torch.compile, which keeps a fifth less.
"""
BLOCK_BACKWARD = 40
"""Bytes beyond that of one block's own backward pass, in the same unit (measured for RWKV-5: 38)."""
RESIDUAL_STREAMS = 6
"""Tensors `[B, T, width]` in fp32 outside the blocks: embedding, its normalized and smeared copies, features, their
gradient, and the gradient that a block passes on."""
CHUNK_LOGITS = 2**27  # logits of a chunk of the loss on a GPU (`trainer.ops.losses`)
LOGIT_COPIES = {"gpt": 4, "rwkv5": 3}  # a chunk's logits in fp32, their softmax, their gradient, the soft cap of gpt
UPDATE_BYTES = 10
"""Temporary bytes for each parameter of all matrices while Muon updates those of one shape together: measured 9.3 with
fp32 polynomials, 6.2 with bf16."""
RESERVED_BYTES = 2 * GB
"""CUDA's context, its libraries' buffers, and fragmentation. A guess on the safe side."""
SHARDED = ("fsdp", "zero2")


KEPT_ON_SERVER = 4  # checkpoints: the newest two, and both ends of a stretch that is kept as evidence
KEPT_ON_NODE = 6  # two of the trainer, one that it writes, two uploaded ones, one downloaded to resume from
UPLOAD_FACTOR = 2  # of the computed sizes, for entries that are larger than the baseline
UPLOAD_EXTRA_BYTES = 2**30


SENT_BYTES = 60 * GB  # of checkpoints of a run, its last one included
MAX_UNSENT_SECONDS = 6 * 3600.0  # lost at most if a node dies: for checkpoints too large for `SENT_BYTES`


def compute_upload_seconds(checkpoint_bytes: int, run_seconds: float) -> float:
    """Return the seconds between two uploads with which a run sends at most `SENT_BYTES`, and at least four a day."""
    return min(run_seconds / max(SENT_BYTES // checkpoint_bytes, 1), MAX_UNSENT_SECONDS)


@dataclass(frozen=True)
class UploadLimits:
    """What a node may upload for one job, in bytes."""

    file_bytes: int
    lease_bytes: int  # all files of one lease, superseded checkpoints not counted


def compute_upload_limits(checkpoint_bytes: int) -> UploadLimits:
    """Return the limits for a job whose checkpoints have this size."""
    file_bytes = UPLOAD_FACTOR * checkpoint_bytes + UPLOAD_EXTRA_BYTES
    return UploadLimits(file_bytes, KEPT_ON_SERVER * file_bytes)


@dataclass(frozen=True)
class ModelSize:
    """Parameters of a model, and the sizes that its memory depends on."""

    family: str  # key of `ACTIVATIONS`
    depth: int
    width: int
    vocabulary_size: int
    parameters: int
    largest_block: int  # parameters
    matrices: int = 0  # parameters that Muon updates, with one momentum; AdamW has two

    @property
    def weights_bytes(self) -> int:
        """fp32 master weights."""
        return self.parameters * FP32

    @property
    def optimizer_bytes(self) -> int:
        return (2 * self.parameters - self.matrices) * FP32

    @property
    def checkpoint_bytes(self) -> int:
        """A checkpoint to resume from."""
        return self.weights_bytes + self.optimizer_bytes

    @property
    def milestone_bytes(self) -> int:
        """bf16 weights."""
        return self.parameters * BF16


def compute_model_size(
    config: Mapping[str, Any], arch: str = "gpt", vocabulary_size: int | None = None
) -> ModelSize | None:
    """Return the size of an architecture of ours at a track's configuration; None if no formula covers it."""
    model = config.get("model", {})
    arch, vocabulary = config.get("arch", arch), vocabulary_size or VOCABULARY
    if set(model) - {"depth"}:
        return None  # sizes other than those that follow from the depth
    if arch in ("gpt", "smear") and "depth" in model:
        return compute_gpt_size(model["depth"], vocabulary)
    if arch in RWKV5_SHAPES:
        return compute_rwkv5_size(*RWKV5_SHAPES[arch], vocabulary)
    return None


def compute_gpt_size(depth: int, vocabulary_size: int) -> ModelSize:
    """Return the size of the baseline, `trainer.models.gpt`, with every field computed from the depth."""
    width, rows = 64 * depth, -(-vocabulary_size // 64) * 64
    heads = width // (128 if width >= 768 and width % 128 == 0 else 64)
    matrices, gates = 12 * width * width, min(32, width)
    value_embedding = rows * width + heads * gates
    block = matrices + heads + 2  # with a gain per head and two lambdas
    parameters = 2 * rows * width + depth * block + (depth + 1) // 2 * value_embedding + gates + 2
    return ModelSize("gpt", depth, width, rows, parameters, block + value_embedding, depth * matrices)


RWKV5_SHAPES = {"rwkv5-430m": (24, 1024), "rwkv5-1b5": (24, 2048), "rwkv5-3b": (32, 2560), "rwkv5-7b": (32, 4096)}


def compute_rwkv5_size(depth: int, width: int, vocabulary_size: int) -> ModelSize:
    """Return the size of `trainer.models.rwkv5`, version 5.2."""
    hidden = 7 * width // 2 // 32 * 32
    block = 6 * width * width + 2 * hidden * width + 14 * width  # six mixes, decay, bonus, ln_x, ln1, ln2
    parameters = 2 * vocabulary_size * width + depth * block + 4 * width  # ln0, ln_out
    return ModelSize("rwkv5", depth, width, vocabulary_size, parameters, block)


def estimate_memory(
    size: ModelSize, config: Mapping[str, Any], chunk_logits: int = CHUNK_LOGITS, reserved_bytes: int = RESERVED_BYTES
) -> dict[str, int]:
    """Return the largest bytes on one device while it trains, by part. Their sum is an upper bound of the peak.

    `config`: a track's, with `train.micro_batch` and `train.sequence_length`. Weights, gradients and optimizer state
    are shared by the devices with `fsdp`; each then gathers a block, the next one and a gradient, and what is outside.
    """
    train, devices = config["train"], config.get("devices", 1)
    tokens = train["micro_batch"] * train.get("sequence_length", DEFAULT_GPU_SEQUENCE_LENGTH)
    precision = "fp32" if train.get("precision", "auto") in ("auto", "fp32") else "bf16"
    stream = tokens * size.width
    block = ACTIVATIONS[size.family][precision] * stream
    kept = size.depth * stream * FP32 + block if train.get("activation_checkpointing") else size.depth * block
    logits = min(max(chunk_logits, 256 * size.vocabulary_size), tokens * size.vocabulary_size)
    loss = (
        LOGIT_COPIES[size.family] * FP32 * logits + 2 * FP32 * size.vocabulary_size * size.width
    )  # with the head's gradient twice
    backward = kept + BLOCK_BACKWARD * stream + RESIDUAL_STREAMS * stream * FP32 + loss
    update = UPDATE_BYTES * size.matrices  # on every device
    share = devices if train.get("strategy") in SHARDED else 1
    parts = {
        "weights": size.weights_bytes // share,
        "gradients": size.parameters * FP32 // share,
        "optimizer": size.optimizer_bytes // share,
        "activations or update": max(backward, update),
        "reserved": reserved_bytes,
    }
    if share > 1:
        outside = 3 * size.vocabulary_size * size.width  # embedding and head for the whole step, a gradient
        parts["gathered"] = size.parameters * BF16 + (3 * size.largest_block + outside) * FP32
    elif devices > 1:
        parts["gathered"] = size.parameters * FP32  # the buckets of ddp
    return parts
