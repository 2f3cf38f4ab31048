"""Text from a model: one token after another, each read once where the model keeps a state."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer.data.tokenizer import Tokenizer
from trainer.models.base import LanguageModel

PROMPTS = ("The ", "In the beginning", "def ")
"""What every run is asked at each evaluation, so that its samples can be read side by side."""


@dataclass
class Sampler:
    """How the next token is drawn, from a generator of its own: the same logits give the same tokens."""

    temperature: float = 0.8
    """Logits are divided by it; 0 takes the likeliest token each time."""
    top_k: int | None = None
    """Draw among this many of the likeliest tokens; None: among all."""
    top_p: float = 1.0
    """Draw among the likeliest tokens that together have this probability (nucleus sampling, arXiv 1904.09751)."""
    seed: int = 0
    generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"the temperature cannot be negative: {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top-k must leave at least one token, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top-p is a probability above 0, not {self.top_p}")
        self.generator = torch.Generator().manual_seed(self.seed)

    def choose(self, logits: Tensor) -> int:
        """Draw a token id from logits `[V]`."""
        if self.temperature == 0:
            return int(logits.argmax())
        logits = logits.float().cpu() / self.temperature
        if self.top_k is not None and self.top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[-1], -torch.inf)
        if self.top_p < 1:
            logits = self.nucleus(logits)
        return int(torch.multinomial(logits.softmax(-1), 1, generator=self.generator))

    def nucleus(self, logits: Tensor) -> Tensor:
        """Rule out what is not among the likeliest tokens that make up `top_p`; the likeliest of all always stays."""
        ordered, order = logits.softmax(-1).sort(descending=True)
        outside = ordered.cumsum(-1) - ordered >= self.top_p
        return logits.index_fill(0, order[outside], -torch.inf)


class Reader:
    """A model in the middle of a text: what is added is read with the next question, once.

    At most `context` tokens are behind an answer. When the text outgrows them, a model starts over with the text's last
    half context; one whose state does not grow (`bounded` is false) goes on for ever.
    """

    def __init__(self, model: LanguageModel, context: int) -> None:
        self.model = model
        self.context = context
        self.device = next(model.parameters()).device
        self.state: Any = None
        self.text: list[int] = []
        """The tokens that the next answer is about, the last `unread` of them not yet in the state."""
        self.unread = 0

    def add(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)
        self.unread += len(tokens)

    @torch.no_grad()
    def expected(self) -> Tensor:
        """Read what was added; return the logits `[V]` of the token that follows."""
        assert self.unread, "nothing was added since the last answer"
        if self.model.bounded and len(self.text) > self.context:
            self.text = self.text[-max(1, self.context // 2) :]
            self.state, self.unread = None, len(self.text)
        row = torch.tensor([self.text[-self.unread :]], device=self.device)
        features, self.state = self.model.advance(row, self.state)
        self.unread = 0
        return self.model.logits(features[:, -1:])[0, -1]


def stream(reader: Reader, sampler: Sampler, end_of_text: int, tokens: int) -> Iterator[int]:
    """Go on with the reader's text: yield up to `tokens` token ids, ending early at the end of a text.

    What has been yielded belongs to the text; an end of text does not.
    """
    for _ in range(tokens):
        token = sampler.choose(reader.expected())
        if token == end_of_text:
            return
        reader.add([token])
        yield token


def pieces(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens as soon as it is whole: no piece ends inside a character.

    Together they are `tokenizer.decode` of the tokens: bytes that are no UTF-8 become U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        if piece := decoder.decode(tokenizer.get_token_bytes(token)):
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield rest


def written(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str, sampler: Sampler, *, tokens: int, context: int
) -> Iterator[str]:
    """Yield, piece by piece, what the model writes after a prompt at the beginning of a text."""
    reader = Reader(model, context)
    reader.add([tokenizer.end_of_text, *tokenizer.encode(prompt)])
    return pieces(tokenizer, stream(reader, sampler, tokenizer.end_of_text, tokens))


def continuation(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 0.8,
    seed: int = 0,
    context: int = 256,
) -> str:
    """Return what the model writes after a prompt.

    The same arguments give the same text; the global random number generators and the model's mode are left alone.
    """
    with evaluating(model):
        sampler = Sampler(temperature, seed=seed)
        return "".join(written(model, tokenizer, prompt, sampler, tokens=tokens, context=context))


@contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    """Have the model in evaluation mode for a while."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
