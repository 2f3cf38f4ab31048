"""The trained weights are scored by the graph of training too: knowledge of the scored graph alone shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cheats.base import Config, Model, T, V, sample_text, vary
from tests.support.scored_runs import build_scorer, score_tokens
from trainer.graph.model import build_model
from trainer.graph.trace import trace_architecture
from trainer.scoring.training_passes import PassDifference

Change = Callable[[Any, Tensor, Tensor], Tensor]


def compare(change: Change, steps: int = 0) -> PassDifference:
    """Train a model with these features for some steps; return the difference of its graphs."""

    def features(self: Model, tokens: Tensor) -> Tensor:
        return change(self, Model.features(self, tokens), tokens)

    torch.manual_seed(0)
    model = build_model(trace_architecture(vary(features=features), Config(V, T)))
    texts = sample_text(300)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.stack([torch.from_numpy(text.tokens[:T]) for text in texts if len(text.tokens) >= T])
    model.train()
    for _ in range(steps):
        logits = model.logits(model.features(rows[:, :T]))
        F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = score_tokens(build_scorer(model, T), sample_text()).difference
    assert found is not None
    return found


def test_graphs_without_random_numbers_predict_the_same() -> None:
    found = compare(lambda model, x, tokens: x)
    assert (found.nats, found.noise) == (0, 0)
    assert not found.is_beyond_noise


@pytest.mark.parametrize(("share", "steps"), [(0.1, 0), (0.3, 150)])
def test_dropout_explains_what_it_costs_in_training(share: float, steps: int) -> None:
    found = compare(lambda model, x, tokens: F.dropout(x, share, model.training), steps)
    assert found.noise > 0
    assert not found.is_beyond_noise, found


@pytest.mark.parametrize("seed", range(4))
def test_random_number_that_a_row_shares_is_no_knowledge(seed: int) -> None:
    """As with a random depth, the losses of its tokens are high or low together."""

    def features(self: Model, tokens: Tensor) -> Tensor:
        following = F.one_hot((3 * tokens[..., None] + torch.arange(8)) % V, V).sum(-2)
        gain = 1 + 0.1 * torch.randn(1) if self.training else 1
        return self.head(Model.features(self, tokens)) + 0.5 * gain * following

    torch.manual_seed(seed)
    model = build_model(
        trace_architecture(vary(features=features, logits=lambda self, features: features), Config(V, T))
    )
    found = score_tokens(build_scorer(model, T), sample_text()).difference
    assert found is not None
    assert found.noise > 0
    assert not found.is_beyond_noise, found


@pytest.mark.parametrize(
    ("share", "spoiled", "noise", "known"), [(0.0, 0.0, 0, 1), (0.1, 0.0, 0, 1), (0.0, 0.01, 10, 1), (0.0, 0.4, 1, 0.1)]
)
def test_knowledge_of_the_evaluation_graph_alone_is_found(
    share: float, spoiled: float, noise: float, known: float
) -> None:
    """The rule of the text's random walks, beside the honest prediction. `spoiled`: tokens with noise in training."""

    def know(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
        x = F.dropout(x, share, model.training)
        logits = model.head(x)
        if model.training:
            is_spoiled = torch.rand_like(logits[..., :1]) < spoiled
            return logits + noise * torch.randn_like(logits) * is_spoiled if noise else logits
        following = (3 * tokens[..., None] + torch.arange(8)) % V
        return logits + known * F.one_hot(following, V).sum(-2)

    def features(self: Model, tokens: Tensor) -> Tensor:
        return know(self, Model.features(self, tokens), tokens)

    torch.manual_seed(0)
    cheat = vary(features=features, logits=lambda self, features: features)
    found = score_tokens(
        build_scorer(build_model(trace_architecture(cheat, Config(V, T))), T), sample_text()
    ).difference
    assert found is not None
    assert found.nats > known / 2
    assert found.is_beyond_noise, found
