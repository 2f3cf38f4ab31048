"""The configuration that all peers of a run share. It determines every stage and every step's data."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from trainer.protocol import Message

Wire = Literal["fp32", "bf16", "fp16", "fp8"]
WIRES = get_args(Wire)
Beta = Annotated[float, Field(ge=0, lt=1)]


class SwarmConfig(Message):
    version: Literal[1] = 1
    arch: str = Field(pattern=r"^[a-z0-9_]{1,40}$")  # A name of `trainer.swarm.partitions`.
    model: dict[str, Any]  # Fields of the architecture's Config
    stages: int = Field(ge=1, le=64)
    steps: int = Field(ge=1)
    seed: int = Field(default=0, ge=0, lt=2**63)  # Seed of the initial weights and of the data order
    micro_batch: int = Field(default=2, ge=1, le=4096)  # Rows per micro-batch
    micro_batches: int = Field(default=8, ge=1, le=4096)  # Micro-batches per step; the gradient is their mean
    sequence_length: int = Field(default=64, ge=2, le=2**20)

    learning_rate: float = Field(default=1e-3, gt=0, lt=1)  # AdamW's peak learning rate
    weight_decay: float = Field(default=0.1, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    epsilon: float = Field(default=1e-8, gt=0)
    clip: float | None = Field(default=1.0, gt=0)  # Maximum norm of the whole model's gradient, over all stages
    warmup_steps: int = Field(default=10, ge=0)
    final: float = Field(default=0.1, ge=0, le=1)  # Factor on the learning rate at the last step, after cosine decay

    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of matrix products; weights, gradient sums and the optimizer are fp32."""
    wire: Wire = "fp32"
    """How hidden states and their gradients are sent (`trainer.swarm.frames`). Only fp32 is exact."""
    sums: Literal["fp32", "bf16"] = "fp32"  # Dtype in which peers of a stage exchange gradient sums
    audit: float = Field(default=0.02, ge=0, le=1)
    """Probability, per peer and step, that another peer of its stage recomputes its share."""
    checkpoint_every: int = Field(default=50, ge=1)  # Steps between checkpoints

    @property
    def tokens_per_step(self) -> int:
        return self.micro_batches * self.micro_batch * self.sequence_length

    def get_rate_factor(self, step: int) -> float:
        """Return the factor on the learning rate for the update of step `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(done, 1.0))) / 2

    def compute_clip_scale(self, squared_norm: float) -> float:
        """Return the factor on the mean gradient, given the sum of all stages' squared norms."""
        norm = math.sqrt(squared_norm)
        return 1.0 if self.clip is None or norm <= self.clip else self.clip / norm
