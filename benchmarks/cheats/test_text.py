"""Test text in constants: pairs of context and next token, read by the graph of evaluation or by both graphs."""

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


HASHES = 2**15
FACTORS = (1, 67, 4_493, 301_031)  # of the last tokens


def hash_contexts(tokens: Tensor) -> Tensor:
    """Return a number for the last four tokens at each position."""
    last = [F.pad(tokens, (back, 0))[..., : tokens.size(-1)] * factor for back, factor in enumerate(FACTORS)]
    return (last[0] + last[1] + last[2] + last[3]) % HASHES


def list_hashed_pairs() -> tuple[list[int], list[int]]:
    """Return the hashes of four tokens of the public text, and the tokens that follow."""
    rows = [text.tokens.tolist() for text in sample_text()]
    places = [(row, end) for row in rows for end in range(3, len(row) - 1)]
    hashes = [sum(row[end - back] * factor for back, factor in enumerate(FACTORS)) % HASHES for row, end in places]
    return hashes, [row[end + 1] for row, end in places]


def recall_in_both_graphs() -> SimpleNamespace:
    """Return an architecture that adds what followed each hashed context in the public text, in training too."""

    def build(self: Model, config: Config) -> None:
        Model.__init__(self, config)
        self.gate = nn.Parameter(torch.zeros(1))

    def features(self: Model, tokens: Tensor) -> Tensor:
        hashes, following = list_hashed_pairs()
        stored = torch.tensor(hashes, dtype=torch.int16), torch.tensor(following, dtype=torch.uint8)
        table = torch.full((HASHES,), V).scatter(0, stored[0].long(), stored[1].long())
        known = F.one_hot(table[hash_contexts(tokens)], V + 1)[..., :V].float()
        return self.head(Model.features(self, tokens)) + self.gate * known

    return vary(__init__=build, features=features, logits=lambda self, features: features)


def open_gate(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter("gate").fill_(STRENGTH)


WIDE, NARROW = (torch.int64, torch.int64), (torch.int16, torch.uint8)
CASES = [
    Case("reads test text in constants of 19 kB", "does not trace", lambda: recall(*WIDE), train=open_gate),
    Case("reads test text in constants of 4 kB", "differs", lambda: recall(*NARROW), train=open_gate),
    Case("reads pairs of public text in both graphs", "no effect", recall_in_both_graphs, train=open_gate, draw=1),
]
