"""Size of a training: parameters, bytes of checkpoints, and a device's memory, also for scoring, from a configuration.

Standard library only: the site uses it for the limits of its tracks. Formulas hold for the architectures in
`compute_model_size`; of others the site learns the sizes when it traces them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.accounting.budget import Budget

FP32, BF16 = 4, 2  # bytes of a number
GB = 10**9
VOCABULARY = 32_768  # of seasons for GPUs, where the dataset is not prepared yet
DEFAULT_GPU_SEQUENCE_LENGTH = 2048

ACTIVATIONS = {"gpt": {"fp32": 84, "bf16": 48}, "rwkv5": {"fp32": 168, "bf16": 140}}
"""Bytes that a block keeps for the backward pass, per token and channel of its input, with the bf16 copies of its
weights. Measured on a CPU with saved_tensors_hooks at depths 4 to 12, without torch.compile.
"""
COMPILED_ACTIVATIONS = {"gpt": (43, 16)}
"""The same of a graph in bf16 that torch.compile plans for an H100, at its peak in the backward pass, and what is
outside the blocks: from depths 4 and 24 of width 1,536 (benchmarks/results/gpu.md)."""
BLOCK_BACKWARD = 40
"""Bytes beyond that of one block's own backward pass, in the same unit (measured for RWKV-5: 38)."""
RESIDUAL_STREAMS = 6
"""Tensors `[B, T, width]` in fp32 outside the blocks: embedding, its normalized and smeared copies, features, their
gradient, and the gradient that a block passes on."""
CHUNK_LOGITS = (2**27, 2**28)  # limits of a quarter of the logits: a chunk of the loss on a GPU (`trainer.ops.losses`)
LOGIT_COPIES = {"gpt": 4, "rwkv5": 3}  # a chunk's logits in fp32, their softmax, their gradient, the soft cap of gpt
UPDATE_BYTES = 10
"""Temporary bytes for each parameter of all matrices while Muon updates those of one shape together: measured 9.3 with
fp32 polynomials, 6.2 with bf16."""
ROW_GRADIENTS = 5
"""Tensors as large as the gradients of what a step's tokens read of an n-gram memory: what all passes leave, joined, in
fp32, summed for a hash, and its update. Counted from the code (`trainer.ops.ngram_memory`)."""
RESERVED_BYTES = 2 * GB
"""CUDA's context, its libraries' buffers, and fragmentation. A guess on the safe side."""
SHARDED = ("fsdp", "zero2")
SCORED_STREAMS = 18
"""fp32 tensors `[T, width]` at the peak of a graph's pass without gradients: measured 15.4 for gpt, 11.6 for RWKV-5."""
SCORED_LOGITS = 3  # fp32 tensors `[T, vocabulary]` for the loss of a row: measured 2.0


KEPT_ON_SERVER = 4  # checkpoints: the newest two, and both ends of a stretch that is kept as evidence
KEPT_ON_NODE = 6  # two of the trainer, one that it writes, two uploaded ones, one downloaded to resume from
UPLOAD_FACTOR = 2  # of the computed sizes, for entries that are larger than the baseline
UPLOAD_EXTRA_BYTES = 2**30


SENT_BYTES = 60 * GB  # of a run: checkpoints, milestones and final weights
UPLOAD_MARGIN = 1.1  # compilation, evaluation and waiting for the next checkpoint take time beyond the run's
MAX_UNSENT_SECONDS = 9 * 3600.0  # lost at most if a node dies: for checkpoints too large for `SENT_BYTES`


@dataclass(frozen=True)
class CheckpointSizes:
    """Bytes of what a run uploads."""

    checkpoint: int  # to resume from
    final: int  # weights in fp32
    milestone: int  # weights in bf16
    milestones: int  # their number

    @property
    def kept(self) -> int:
        """Bytes that stay after the run."""
        return self.final + self.milestones * self.milestone


def compute_upload_seconds(
    sizes: CheckpointSizes, run_seconds: float, max_seconds: float = MAX_UNSENT_SECONDS
) -> float:
    """Return the seconds between two uploads of checkpoints to resume from.

    With them a run sends at most `SENT_BYTES`, unless it would then lose more than `max_seconds`.
    """
    uploads = max((SENT_BYTES - sizes.kept) // sizes.checkpoint, 1)
    return min(UPLOAD_MARGIN * run_seconds / (uploads + 1), max_seconds)


def compute_sent_bytes(
    sizes: CheckpointSizes, run_seconds: float, checkpoint_seconds: float, max_seconds: float = MAX_UNSENT_SECONDS
) -> int:
    """Return the bytes that an uninterrupted run sends, with a checkpoint every so many seconds."""
    every = compute_upload_seconds(sizes, run_seconds, max_seconds)
    every = math.ceil(every / checkpoint_seconds) * checkpoint_seconds  # the first checkpoint after that time
    return sizes.kept + (math.ceil(run_seconds / every) - 1) * sizes.checkpoint


@dataclass(frozen=True)
class UploadLimits:
    """Upload limits of a job, in bytes."""

    file_bytes: int
    lease_bytes: int  # all files of one lease, superseded checkpoints not counted


def compute_upload_limits(sizes: CheckpointSizes) -> UploadLimits:
    """Return the limits of a job that uploads files of these sizes."""
    file_bytes = UPLOAD_FACTOR * sizes.checkpoint + UPLOAD_EXTRA_BYTES
    return UploadLimits(file_bytes, KEPT_ON_SERVER * file_bytes + UPLOAD_FACTOR * sizes.kept)


def estimate_checkpoint_bytes(file_bytes: int) -> int:
    """Return the bytes of a checkpoint whose limit of a file is `file_bytes`."""
    return max(file_bytes - UPLOAD_EXTRA_BYTES, 0) // UPLOAD_FACTOR


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
    bf16_tables: int = 0  # parameters of embeddings in bf16 (`train.table_precision`)
    memory: int = 0  # parameters of the table of an n-gram memory, of which a step has only the gradients of its rows
    memory_row: int = 0  # parameters that a token reads of it
    memory_numbers: int = 0  # of optimizer state

    @property
    def weights_bytes(self) -> int:
        return self.parameters * FP32 - self.bf16_tables * (FP32 - BF16)

    @property
    def gradient_bytes(self) -> int:
        return self.weights_bytes - self.memory * FP32

    @property
    def optimizer_bytes(self) -> int:
        """Momenta, and of tables in bf16 the other 16 bits of their weights."""
        momenta = 2 * (self.parameters - self.memory) - self.matrices + self.memory_numbers
        return momenta * FP32 - self.bf16_tables * (2 * FP32 - 3 * BF16)

    @property
    def checkpoint_bytes(self) -> int:
        """A checkpoint to resume from."""
        return self.weights_bytes + self.optimizer_bytes


def compute_checkpoint_sizes(size: ModelSize | None, milestone_percent: int, parameters: int = 0) -> CheckpointSizes:
    """Return the sizes of a run's uploads; zeros if unknown.

    `parameters`: of its graph, which count if it is larger than the baseline, with AdamW's two momenta.
    """
    checkpoint = size.checkpoint_bytes if size else 0
    if size and size.parameters >= parameters:
        parameters = size.parameters
    else:
        checkpoint = 3 * FP32 * parameters
    milestones = 99 // milestone_percent if milestone_percent else 0
    return CheckpointSizes(checkpoint, FP32 * parameters, BF16 * parameters, milestones)


def compute_model_size(
    config: Mapping[str, Any], arch: str = "gpt", vocabulary_size: int | None = None
) -> ModelSize | None:
    """Return the size of an architecture of ours at a track's configuration; None if no formula covers it.

    That of RWKV-5 is its version 5.2's, the largest but for 5.0.
    """
    model = config.get("model", {})
    arch, vocabulary = config.get("arch", arch), vocabulary_size or VOCABULARY
    if set(model) - {"depth", "version", *MEMORY_FIELDS}:
        return None  # sizes other than those that follow from the depth
    if arch in RWKV5_SHAPES:
        return compute_rwkv5_size(*RWKV5_SHAPES[arch], vocabulary)
    if arch in ("gpt", "smear") and "depth" in model:
        return add_memory(compute_gpt_size(model["depth"], vocabulary, has_bf16_tables(config)), model)
    if arch == "rwkv5" and "depth" in model:
        return compute_rwkv5_size(model["depth"], 64 * model["depth"], vocabulary)
    return None


def explain_too_large(
    config: Mapping[str, Any],
    budget: str,
    memory_bytes: int,
    vocabulary_size: int | None = None,
    on_cpu: bool = False,
) -> str:
    """Return why the model of a configuration does not fit into memory; empty if it does or may.

    `memory_bytes`: of each GPU, or that which all processes on the CPU share. Counted are weights, gradients and
    optimizer state. Without a depth the size is that which the budget gives.
    """
    has_depth = "depth" in config.get("model", {})
    sized = {**config, "model": {"depth": choose_gpu_depth(Budget.parse(budget)), **config.get("model", {})}}
    size = compute_model_size(sized, vocabulary_size=vocabulary_size)
    devices = config.get("devices", 1)
    is_sharded = config.get("train", {}).get("strategy") in SHARDED
    share = (devices if is_sharded else 1) / (devices if on_cpu else 1)
    if size is None or (needed := (size.checkpoint_bytes + size.gradient_bytes) / share) <= memory_bytes:
        return ""
    arch = config.get("arch", "gpt")
    follows_budget = not has_depth and arch not in RWKV5_SHAPES
    origin = f" without a size gets depth {size.depth} for the budget {budget} and then" if follows_budget else ""
    cards = "this machine" if on_cpu else f"each of the {devices} GPUs" if devices > 1 else "the GPU"
    free = " free" if on_cpu else ""
    return (
        f"{arch}{origin} has {size.parameters / 1e9:.1f} billion parameters: weights, gradients and optimizer state "
        f"take {needed / GB:,.0f} GB on {cards}, with {memory_bytes / GB:,.0f} GB of{free} memory. "
        f"Name a smaller size: {suggest_sizes(arch)}."
    )


def suggest_sizes(arch: str) -> str:
    return ", ".join([*RWKV5_SHAPES, "or set model.depth"]) if arch.startswith("rwkv5") else "set model.depth"


def has_bf16_tables(config: Mapping[str, Any]) -> bool:
    """Return whether a run of this configuration on GPUs keeps its embeddings in bf16: a graph's in bf16 or fp8."""
    train = config.get("train", {})
    is_traced = not train.get("activation_checkpointing") and train.get("strategy") not in SHARDED
    return is_traced and train.get("table_precision") == "bf16" and train.get("precision") in ("bf16", "fp8")


def compute_gpt_size(depth: int, vocabulary_size: int, bf16_tables: bool = False) -> ModelSize:
    """Return the size of the baseline, `trainer.models.gpt`, with every field computed from the depth."""
    width, rows = 64 * depth, -(-vocabulary_size // 64) * 64
    heads = width // (128 if width >= 768 and width % 128 == 0 else 64)
    matrices, gates = 12 * width * width, min(32, width)
    value_embedding = rows * width + heads * gates
    block = matrices + heads + 2  # with a gain per head and two lambdas
    parameters = 2 * rows * width + depth * block + (depth + 1) // 2 * value_embedding + gates + 2
    tables = (1 + (depth + 1) // 2) * rows * width if bf16_tables else 0
    return ModelSize("gpt", depth, width, rows, parameters, block + value_embedding, depth * matrices, tables)


MEMORY_FIELDS = ("memory_rows", "memory_orders", "memory_blocks", "memory_width")


def add_memory(size: ModelSize, model: Mapping[str, Any]) -> ModelSize:
    """Return the size of the baseline with the n-gram memory of its configuration."""
    if not model.get("memory_rows"):
        return size
    named, width = str(model.get("memory_blocks", "all")), model.get("memory_width", 0)
    blocks = {"all": size.depth, "none": 0}.get(named, len(set(named.split(","))))
    rows = model["memory_rows"] * len(str(model.get("memory_orders", "2,3")).split(","))
    slices = blocks + 1 if width else 1
    row = slices * (width or size.width)
    projection = width * size.width if width not in (0, size.width) else 0
    gate = size.width + 1
    return dataclasses.replace(
        size,
        parameters=size.parameters + rows * row + (blocks + 1) * (gate + projection),
        largest_block=size.largest_block + (gate + projection if blocks else 0),
        matrices=size.matrices + (blocks + 1) * projection,
        memory=rows * row,
        memory_row=row,
        memory_numbers=rows * slices,
    )


RWKV5_SHAPES = {
    "rwkv5-tiny": (4, 256),
    "rwkv5-169m": (12, 768),
    "rwkv5-430m": (24, 1024),
    "rwkv5-1b5": (24, 2048),
    "rwkv5-3b": (32, 2560),
    "rwkv5-7b": (32, 4096),
}


def compute_rwkv5_size(depth: int, width: int, vocabulary_size: int) -> ModelSize:
    """Return the size of `trainer.models.rwkv5`, version 5.2."""
    hidden = 7 * width // 2 // 32 * 32
    block = 6 * width * width + 2 * hidden * width + 14 * width  # six mixes, decay, bonus, ln_x, ln1, ln2
    parameters = 2 * vocabulary_size * width + depth * block + 4 * width  # ln0, ln_out
    return ModelSize("rwkv5", depth, width, vocabulary_size, parameters, block)


def estimate_memory(
    size: ModelSize,
    config: Mapping[str, Any],
    chunk_logits: tuple[int, int] = CHUNK_LOGITS,
    reserved_bytes: int = RESERVED_BYTES,
) -> dict[str, int]:
    """Return the largest bytes on one device while it trains, by part. Their sum is an upper bound of the peak.

    `config`: a track's, with `train.micro_batch` and `train.sequence_length`. Weights, gradients and optimizer state
    are shared by the devices with `fsdp` and `zero2`; each then gathers a block, the next one and a gradient, and what
    is outside.
    """
    train, devices = config["train"], config.get("devices", 1)
    tokens = train["micro_batch"] * train.get("sequence_length", DEFAULT_GPU_SEQUENCE_LENGTH)
    precision = "fp32" if train.get("precision", "auto") in ("auto", "fp32") else "bf16"
    stream = tokens * size.width
    block = ACTIVATIONS[size.family][precision] * stream
    kept = size.depth * stream * FP32 + block if train.get("activation_checkpointing") else size.depth * block
    logits = estimate_chunk_logits(size, tokens, chunk_logits)
    loss = (
        LOGIT_COPIES[size.family] * FP32 * logits + 2 * FP32 * size.vocabulary_size * size.width
    )  # with the head's gradient twice
    backward = kept + BLOCK_BACKWARD * stream + RESIDUAL_STREAMS * stream * FP32 + loss
    if is_compiled_whole(size, config):
        block, outside = COMPILED_ACTIVATIONS[size.family]
        backward = (size.depth * block + outside) * stream + loss
    update = UPDATE_BYTES * size.matrices  # on every device
    share = devices if train.get("strategy") in SHARDED else 1
    step_tokens = tokens * train.get("batch", train["micro_batch"]) // train["micro_batch"]
    parts = {
        "weights": size.weights_bytes // share,
        "gradients": size.gradient_bytes // share,
        "optimizer": size.optimizer_bytes // share,
        "activations or update": max(backward, update),
        "reserved": reserved_bytes,
    }
    if size.memory:
        parts["row gradients"] = ROW_GRADIENTS * FP32 * step_tokens * size.memory_row
    if share > 1:
        outside = 3 * size.vocabulary_size * size.width  # embedding and head for the whole step, a gradient
        parts["gathered"] = size.parameters * BF16 + (3 * size.largest_block + outside) * FP32
        if train["strategy"] == "zero2":
            parts["gathered"] += size.parameters * FP32  # until the backward pass
    elif devices > 1:
        parts["gathered"] = size.parameters * FP32  # the buckets of ddp
    return parts


def estimate_chunk_logits(size: ModelSize, tokens: int, limits: tuple[int, int]) -> int:
    """Return the logits of a chunk of the loss: a quarter of those of `tokens`, within limits, for 256 at least."""
    chunk = min(max(tokens * size.vocabulary_size // 4, limits[0]), limits[1])
    return min(max(chunk, 256 * size.vocabulary_size), tokens * size.vocabulary_size)


def is_compiled_whole(size: ModelSize, config: Mapping[str, Any]) -> bool:
    """Return whether a run on a GPU compiles features as one graph whose memory is known."""
    train = config["train"]
    is_known = size.family in COMPILED_ACTIVATIONS and train.get("precision") == "bf16"
    is_whole = train.get("compile", True) and not train.get("activation_checkpointing")
    return is_known and is_whole and train.get("strategy") not in SHARDED


def estimate_scoring_memory(
    size: ModelSize, sequence_length: int, parameters: int = 0, reserved_bytes: int = RESERVED_BYTES
) -> dict[str, int]:
    """Return the largest bytes on a device that scores one row after another, by part (`trainer.scoring.model_scorer`).

    Weights are there twice, in fp32: after each pass they are compared with a copy. `parameters`: of an entry that may
    be larger than the baseline.
    """
    row = sequence_length * FP32
    return {
        "weights": 2 * FP32 * max(size.parameters, parameters),
        "activations or logits": row * max(SCORED_STREAMS * size.width, SCORED_LOGITS * size.vocabulary_size),
        "reserved": reserved_bytes,
    }


def estimate_gpu_flops(budget: Budget) -> float:
    """Return the FLOPs that a budget buys on one H100 at 40 % of its peak; GPU sizes follow from it."""
    if budget.kind == "flops":
        return budget.amount
    if budget.kind == "seconds":
        return budget.amount * 989e12 * 0.4
    tokens = budget.amount if budget.kind == "tokens" else budget.amount * 2**17
    # A model trained on 12 tokens a parameter: 6 x (tokens / 12) x tokens.
    return tokens**2 / 2


def choose_gpu_depth(budget: Budget) -> int:
    """Return the even depth whose 12 x depth x (64 x depth)^2 parameters get about 12 tokens each (as in nanochat)."""
    depth = (estimate_gpu_flops(budget) / (6 * 12 * (12 * 64**2) ** 2)) ** (1 / 6)
    return max(4, round(depth / 2) * 2)
