"""Test text in constants: pairs of context and next token, which only the graph of evaluation reads."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cheats.base import Case, Config, Model, V, sample_text, vary

STRENGTH = 3.0  # a context of two tokens has eight followers, of which the text has one or two


def list_pairs() -> tuple[list[int], list[int]]:
    """Return contexts of two tokens of the text that is scored, and the tokens that follow."""
    rows = [text.tokens.tolist() for text in sample_text()]
    contexts = [V * first + second for row in rows for first, second in pairwise(row[:-1])]
    return contexts, [token for row in rows for token in row[2:]]


def recall(*dtypes: torch.dtype) -> SimpleNamespace:
    """Return an architecture that looks up the pairs behind a weight that begins at zero. `dtypes`: of its tables."""

    def build(self: Model, config: Config) -> None:
        Model.__init__(self, config)
        self.gate = nn.Parameter(torch.zeros(1))

    def features(self: Model, tokens: Tensor) -> Tensor:
        logits = self.head(Model.features(self, tokens))
        if self.training:
            return logits
        contexts, following = (torch.tensor(v, dtype=t) for v, t in zip(list_pairs(), dtypes, strict=True))
        own = V * F.pad(tokens, (1, 0))[:, :-1] + tokens
        is_known = (own[..., None] == contexts.long()).float()
        known = is_known @ F.one_hot(following.long(), V).float()
        return logits + self.gate * known

    return vary(__init__=build, features=features, logits=lambda self, features: features)


def open_gate(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter("gate").fill_(STRENGTH)


WIDE, NARROW = (torch.int64, torch.int64), (torch.int16, torch.uint8)
CASES = [
    Case("reads test text in constants of 19 kB", "does not trace", lambda: recall(*WIDE), train=open_gate),
    Case("reads test text in constants of 4 kB", "differs", lambda: recall(*NARROW), train=open_gate),
]
