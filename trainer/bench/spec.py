"""The shape that all contenders train, and the contenders. Imports no torch, since the scheduling process has none."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from trainer.errors import UserError


class ShapeError(UserError):
    """The shape is impossible."""


@dataclass(frozen=True)
class Shape:
    depth: int = 4  # blocks
    width: int = 256  # size of the residual stream; the MLP is four times as wide
    heads: int = 4  # attention heads. `gpt` derives its own number from depth and width.
    sequence_length: int = 256  # tokens in a row
    batch: int = 8  # rows in a step, processed at once
    vocabulary_size: int = 8192
    device: Literal["cpu", "cuda"] = "cpu"
    """Matrix products are in bf16 (autocast) on a GPU, in fp32 on a CPU; weights are always fp32."""
    threads: int = 2  # threads of torch on a CPU

    def __post_init__(self) -> None:
        if min(self.depth, self.width, self.heads, self.batch, self.vocabulary_size, self.threads) < 1:
            raise ShapeError("every number of a shape must be at least 1")
        if self.sequence_length < 2:
            raise ShapeError(f"a row has at least 2 tokens, not {self.sequence_length}")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ShapeError(f"the width {self.width} must be an even multiple of {self.heads} heads")

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return self.batch * self.sequence_length

    def describe(self) -> str:
        return (
            f"{self.depth} layers x {self.width}, {self.batch} rows of {self.sequence_length} tokens, "
            f"vocabulary {self.vocabulary_size}"
        )


GPU_SHAPE = Shape(depth=12, width=768, heads=12, sequence_length=1024, batch=32, vocabulary_size=50304, device="cuda")
"""GPT-2's 124M."""
PEERS = ("torch", "litgpt")  # a plain GPT built from torch's modules, and litgpt's GPT


@dataclass(frozen=True)
class ContenderSpec:
    """A contender and the shape it trains."""

    name: str  # one of our architectures, or one of `PEERS`
    compiled: bool
    shape: Shape

    @property
    def is_ours(self) -> bool:
        return self.name not in PEERS

    @property
    def title(self) -> str:
        return f"{self.name} compiled" if self.compiled else self.name

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ContenderSpec:
        content = json.loads(text)
        return cls(content["name"], content["compiled"], Shape(**content["shape"]))
