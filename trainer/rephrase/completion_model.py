"""What a model provides to be served by `trainer.rephrase.serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.rephrase.backends.protocol import Completion


@dataclass(frozen=True)
class CompletionRequest:
    prompt: str
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    max_tokens: int = 512
    seed: int = 0


class CompletionModel(Protocol):
    context: int  # context length: tokens of prompt and completion together

    def count_tokens(self, prompt: str) -> int:
        """Return the tokens of the prompt, including those that the chat template adds."""

    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Complete several prompts, each with its own sampling parameters and seed."""
