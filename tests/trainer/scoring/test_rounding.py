"""The allowance for rounding in the correction for later tokens, for any losses and models."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support import peeking_model
from tests.support.architectures import load_public_architecture
from tests.support.scored_runs import build_scorer, make_texts, score_tokens
from trainer.graph.model import build_model
from trainer.graph.trace import trace_architecture
from trainer.scoring.look_ahead import Correction, PositionSample, estimate_correction
from trainer.scoring.text_score import TextScore

V, T = 64, 32
DRAWS = 4096


def estimate(differences: np.ndarray, spread: float, mean_loss: float) -> Correction:
    """Return the correction of a uniform sample; `spread`: standard deviation of the difference of two replacements."""
    positions = np.arange(len(differences))
    sample = PositionSample(positions, np.ones(len(differences)), 0.0, mean_loss)
    return estimate_correction(sample, differences, np.random.default_rng(1).normal(0, spread, size=64))


class LargeLossModel(peeking_model.Model):
    """A causal model with losses of about 120 nats. Sums in its matrix product depend on the number of rows."""

    def __init__(self, config: peeking_model.Config) -> None:
        super().__init__(config)
        self.out = nn.Linear(V, V, bias=False)
        nn.init.normal_(self.out.weight, std=18)

    def logits(self, features: Tensor) -> Tensor:
        return self.out(features)


class UnsteadyModel(peeking_model.Model):
    """Adds noise to its logits that depends on all later tokens, and a little knowledge of the next one."""

    def __init__(self, config: peeking_model.Config, size: float) -> None:
        super().__init__(config)
        self.size = size

    def features(self, tokens: Tensor) -> Tensor:
        sums = tokens.flip(1).cumsum(1).flip(1) - tokens
        phases = (sums[..., None] + 1).float() * torch.arange(1, V + 1, device=tokens.device) * 0.7
        following = torch.nn.functional.one_hot(torch.roll(tokens, -1, dims=1), V).float()
        return super().features(tokens) + self.size * (torch.sin(phases) + 0.02 * following)


def score(model: peeking_model.Model) -> TextScore:
    return score_tokens(build_scorer(model, T), make_texts(V))


def build_peeking_config() -> peeking_model.Config:
    torch.manual_seed(0)
    return peeking_model.Config(V, T, 0)


@pytest.mark.parametrize("mean_loss", [3.2, 120.0])
def test_equal_repeats_allow_the_rounding_of_losses_of_their_size(mean_loss: float) -> None:
    one_bit = np.full(DRAWS, 2.0**-23 * mean_loss)  # of each loss, in the same direction
    assert not estimate(one_bit, 0.0, mean_loss).is_beyond_rounding
    assert estimate(6 * one_bit, 0.0, mean_loss).is_beyond_rounding


def test_small_losses_allow_the_rounding_of_one_nat() -> None:
    assert not estimate(np.full(DRAWS, 1e-7), 0.0, mean_loss=1e-3).is_beyond_rounding


def test_causal_model_with_large_losses_is_within_rounding() -> None:
    found = score(LargeLossModel(build_peeking_config()))
    assert found.bits.nats_per_token > 100
    assert not found.correction.is_beyond_rounding


def test_causal_model_that_rounds_to_bf16_is_within_rounding() -> None:
    differences = np.random.default_rng(0).normal(0, 5e-3, size=DRAWS)
    assert not estimate(differences, 5e-3, mean_loss=3.2).is_beyond_rounding


@pytest.mark.slow
def test_causal_model_with_fourier_transforms_is_within_rounding() -> None:
    module = load_public_architecture("hyena")
    traced = trace_architecture(module, dataclasses.replace(module.Config.sized(2, V, T), width=16))
    torch.manual_seed(0)
    found = score_tokens(build_scorer(build_model(traced), T), make_texts(V, documents=20))
    assert found.correction.rounding > 0  # later tokens change the sums of its transforms
    assert not found.correction.is_beyond_rounding


def test_correction_that_hides_in_inflated_rounding_is_flagged() -> None:
    differences = np.random.default_rng(0).normal(0.02, 1.0, size=DRAWS)
    found = estimate(differences, 1.0, mean_loss=3.2)
    assert abs(found.nats) < 4 * found.rounding  # by its size alone it would be rounding
    assert found.depends_on_replacement
    assert found.is_beyond_rounding


@pytest.mark.parametrize("size", [0.1, 1.0])
def test_model_that_depends_on_the_replacement_of_later_tokens_is_flagged(size: float) -> None:
    found = score(UnsteadyModel(build_peeking_config(), size)).correction
    assert abs(found.nats) < 4 * found.rounding
    assert found.is_beyond_rounding


def test_rounding_is_the_error_of_the_correction_of_a_causal_model() -> None:
    rng = np.random.default_rng(0)
    sample = PositionSample(np.arange(256), rng.uniform(0.2, 2, size=256), 0.0, mean_loss=3.0)
    passes = rng.normal(0, 1e-3, size=(3, 4000, 256))  # of the row, and of two replacements of its later tokens
    found = [estimate_correction(sample, p - f, again - p) for f, p, again in zip(*passes, strict=True)]
    errors = np.array([correction.nats / correction.rounding for correction in found])
    assert errors.std() == pytest.approx(1, abs=0.05)
    assert not any(correction.is_beyond_rounding for correction in found[:500])
