"""Sample text from a model, token by token, reusing the model's state."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer.data.tokenizer import Tokenizer
from trainer.errors import UserError
from trainer.models.base import LanguageModel

PROMPTS = ("The ", "In the beginning", "def ")
"""Prompts of every run at each evaluation, so that samples can be compared."""


@dataclass
class Sampler:
    """Draws the next token with its own random generator: the same logits give the same tokens."""

    temperature: float = 0.8  # logits are divided by it. 0 takes the most likely token each time.
    top_k: int | None = None  # draw among this many of the most likely tokens. None: among all.
    top_p: float = 1.0
    """Draw among the most likely tokens that together have this probability (nucleus sampling, arXiv 1904.09751)."""
    seed: int = 0
    generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"the temperature must be a number of at least 0, not {self.temperature}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"the seed must be from 0 to 2^63 - 1, not {self.seed}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k must leave at least one token, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is a probability above 0, not {self.top_p}")
        self.generator = torch.Generator().manual_seed(self.seed)

    def sample(self, logits: Tensor) -> int:
        """Draw a token id from logits `[V]`."""
        if self.temperature == 0:
            return int(logits.argmax())
        logits = logits.float().cpu() / self.temperature
        if self.top_k is not None and self.top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[-1], -torch.inf)
        if self.top_p < 1:
            logits = self.mask_tail(logits)
        return int(torch.multinomial(logits.softmax(-1), 1, generator=self.generator))

    def mask_tail(self, logits: Tensor) -> Tensor:
        """Mask tokens outside the most likely ones that make up `top_p`. The most likely one always stays."""
        ordered, order = logits.softmax(-1).sort(descending=True)
        outside = ordered.cumsum(-1) - ordered >= self.top_p
        return logits.index_fill(0, order[outside], -torch.inf)


class TextGenerator:
    """A growing text and the model's state for it. Each added token is read once, by the next `predict`.

    A prediction sees at most `context` tokens. When the text outgrows them, the model restarts from the last half
    context; a model with a state of fixed size (`bounded` is false) continues forever.
    """

    def __init__(self, model: LanguageModel, context: int) -> None:
        self.model = model
        self.context = context
        self.device = next(model.parameters()).device
        self.state: Any = None
        self.text: list[int] = []  # the visible tokens. The last `unread` of them are not in the state yet.
        self.unread = 0

    def add(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)
        self.unread += len(tokens)

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Read the added tokens; return the logits `[V]` of the next token."""
        assert self.unread, "no token was added since the last prediction"
        if self.model.bounded and len(self.text) > self.context:
            self.text = self.text[-max(1, self.context // 2) :]
            self.state, self.unread = None, len(self.text)
        row = torch.tensor([self.text[-self.unread :]], device=self.device)
        features, self.state = self.model.advance(row, self.state)
        self.unread = 0
        return self.model.logits(features[:, -1:])[0, -1]


def generate_tokens(generator: TextGenerator, sampler: Sampler, end_of_text: int, tokens: int) -> Iterator[int]:
    """Continue the text: yield up to `tokens` token ids, fewer if the model ends the text.

    Yielded tokens are added to the text; an end-of-text token is not.
    """
    for _ in range(tokens):
        token = sampler.sample(generator.predict())
        if token == end_of_text:
            return
        generator.add([token])
        yield token


def decode_stream(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Yield text as tokens arrive, never a part of a character.

    Together the pieces are `tokenizer.decode` of the tokens: bytes that are not UTF-8 become U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        if piece := decoder.decode(tokenizer.get_token_bytes(token)):
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield rest


def generate_text(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str, sampler: Sampler, *, tokens: int, context: int
) -> Iterator[str]:
    """Yield, piece by piece, the model's continuation of a prompt that starts a new text."""
    generator = TextGenerator(model, context)
    generator.add([tokenizer.end_of_text, *tokenizer.encode(prompt)])
    return decode_stream(tokenizer, generate_tokens(generator, sampler, tokenizer.end_of_text, tokens))


def complete_prompt(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 0.8,
    seed: int = 0,
    context: int = 256,
) -> str:
    """Return the model's continuation of a prompt.

    The same arguments give the same text. Does not change the global random generators or the model's mode.
    """
    was_training = model.training
    model.eval()
    try:
        sampler = Sampler(temperature, seed=seed)
        return "".join(generate_text(model, tokenizer, prompt, sampler, tokens=tokens, context=context))
    finally:
        model.train(was_training)
