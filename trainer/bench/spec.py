"""The shape that all contenders train, and who they are. No torch: the process that gives out the turns has none."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Shape:
    depth: int = 4
    """Blocks."""
    width: int = 256
    """Size of the residual stream; the MLP is four times as wide."""
    heads: int = 4
    """Attention heads of the plain shape. `gpt` has as many as its dial gives it for this depth and width."""
    sequence_length: int = 256
    """Tokens in a row."""
    batch: int = 8
    """Rows in a step, all at once."""
    vocabulary_size: int = 8192
    device: Literal["cpu", "cuda"] = "cpu"
    """On a GPU matrix products are in bf16 by autocast, on a CPU in fp32; weights are always fp32."""
    threads: int = 2
    """Threads of torch on a CPU."""

    def __post_init__(self) -> None:
        if min(self.depth, self.width, self.heads, self.batch, self.vocabulary_size, self.threads) < 1:
            raise ValueError("every number of a shape must be at least 1")
        if self.sequence_length < 2:
            raise ValueError(f"a row has at least 2 tokens, not {self.sequence_length}")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"the width {self.width} must be an even multiple of {self.heads} heads")

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return self.batch * self.sequence_length

    def described(self) -> str:
        return (
            f"{self.depth} layers x {self.width}, {self.batch} rows of {self.sequence_length} tokens, "
            f"vocabulary {self.vocabulary_size}"
        )


ON_GPU = Shape(depth=12, width=768, heads=12, sequence_length=1024, batch=32, vocabulary_size=50304, device="cuda")
"""GPT-2's 124M."""

PEERS = ("torch", "litgpt")
"""A plain GPT of torch's own modules, and litgpt's GPT."""


@dataclass(frozen=True)
class Spec:
    """Who trains what."""

    name: str
    """An architecture of ours, or one of `PEERS`."""
    compiled: bool
    shape: Shape

    @property
    def ours(self) -> bool:
        return self.name not in PEERS

    @property
    def title(self) -> str:
        return f"{self.name} compiled" if self.compiled else self.name

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        content = json.loads(text)
        return cls(content["name"], content["compiled"], Shape(**content["shape"]))
