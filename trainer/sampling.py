"""Text from a model: one token after another, from its own generator of random numbers."""

from __future__ import annotations

import torch

from trainer.data.tokenizer import Tokenizer
from trainer.models.base import LanguageModel

PROMPTS = ("The ", "In the beginning", "def ")
"""What every run is asked at each evaluation, so that its samples can be read side by side."""


@torch.no_grad()
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
    """Return what the model writes after a prompt: up to `tokens` tokens, ending early at the end of a text.

    The model sees at most the last `context` tokens. Temperature 0 takes the likeliest token each time. The same
    arguments give the same text; the global random number generators are left alone. No cache of keys and values: every
    token costs a full pass, which small models can afford.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    seen = [tokenizer.end_of_text, *tokenizer.encode(prompt)]
    written: list[int] = []
    training = model.training
    model.eval()
    for _ in range(tokens):
        row = torch.tensor([(seen + written)[-context:]], device=device)
        logits = model(row)[0, -1].float().cpu()
        token = choose(logits, temperature, generator)
        if token == tokenizer.end_of_text:
            break
        written.append(token)
    model.train(training)
    return tokenizer.decode(written)


def choose(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    """Draw a token id from logits `[V]`."""
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
