"""Losses of single rows, rows whose later tokens are replaced, and rounding of matrix products to TF32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.scored_runs import LENGTH, VOCABULARY, build_gpt, build_scorer, make_texts, score_tokens
from trainer.errors import ModelError
from trainer.models.base import LanguageModel
from trainer.scoring import text_score, tf32
from trainer.scoring.model_scorer import ModelScorer, replace_later_tokens
from trainer.scoring.text_score import describe_checks
from trainer.scoring.tf32 import compare_precisions, round_products


class FixedLogits(LanguageModel):
    """Returns the same logits for every token."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.fixed = logits

    def features(self, tokens: Tensor) -> Tensor:
        return tokens[..., None]

    def logits(self, features: Tensor) -> Tensor:
        return self.fixed.expand(*features.shape[:2], -1)


def draw_tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCABULARY, shape)


def test_losses_equal_cross_entropy_of_the_model() -> None:
    model = build_gpt()
    rows = draw_tokens(3, LENGTH + 1)
    found = build_scorer(model).score_rows(rows[:, :-1], rows[:, 1:])
    with torch.inference_mode():
        logits = model(torch.from_numpy(rows[:, :-1])).double()
    exact = -logits.log_softmax(-1).gather(-1, torch.from_numpy(rows[:, 1:, None]))[..., 0].numpy()
    np.testing.assert_allclose(found.nats, exact, atol=1e-5)
    assert found.is_greedy.tolist() == (logits.argmax(-1).numpy() == rows[:, 1:]).tolist()


def test_losses_at_positions_equal_those_of_whole_rows() -> None:
    scorer, rows, positions = build_scorer(build_gpt()), draw_tokens(4, LENGTH + 1), np.array([0, 3, 17, LENGTH - 1])
    whole = scorer.score_rows(rows[:, :-1], rows[:, 1:]).nats[np.arange(4), positions]
    found = scorer.score_positions(rows[:, :-1], positions, rows[np.arange(4), positions + 1])
    np.testing.assert_allclose(found.nats, whole, atol=1e-6)


def test_unnormalized_logits_gain_nothing() -> None:
    scorer = ModelScorer(FixedLogits(torch.full((1, 1, 50), 1e30)), torch.device("cpu"), 4)
    nats = scorer.score_rows(np.zeros((1, 4), np.int64), np.zeros((1, 4), np.int64)).nats
    np.testing.assert_allclose(nats, math.log(50), atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    logits = torch.zeros(1, 1, 50)
    logits[..., 31] = bad
    scorer = ModelScorer(FixedLogits(logits), torch.device("cpu"), 4)
    with pytest.raises(ModelError, match="NaN or infinite"):
        scorer.score_rows(np.zeros((1, 4), np.int64), np.zeros((1, 4), np.int64))


def test_logits_of_too_few_positions_are_refused() -> None:
    class LastOnly(FixedLogits):
        def features(self, tokens: Tensor) -> Tensor:
            return tokens[:, -1:, None]

    with pytest.raises(ModelError, match="one row of logits"):
        ModelScorer(LastOnly(torch.zeros(1, 1, 50)), torch.device("cpu"), 4).compute_logits(np.zeros(4, np.int64))


class WithBuffer(FixedLogits):
    """Returns fixed logits, and fills a buffer with what a function makes of the tokens."""

    def __init__(self, buffer: Tensor, fill: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__(torch.zeros(VOCABULARY))
        self.fill = fill
        self.register_buffer("seen", buffer)

    def features(self, tokens: Tensor) -> Tensor:
        if self.fill is not None:
            self.seen.copy_(self.fill(tokens[0]))
        return super().features(tokens)


@pytest.mark.parametrize(
    "fill", [lambda row: row[0] + 1.0, lambda row: torch.where(row[-1] == 1, -0.0, 0.0)], ids=["value", "negative zero"]
)
def test_pass_that_writes_to_a_buffer_is_refused(fill: Callable[[Tensor], Tensor]) -> None:
    scorer, row = build_scorer(WithBuffer(torch.zeros(()), fill)), np.ones((1, LENGTH), np.int64)
    for score in (
        lambda: scorer.score_rows(row, row),
        lambda: scorer.score_positions(row, np.array([3]), row[:, 0]),
    ):
        scorer.model.seen.zero_()
        with pytest.raises(ModelError, match="changes seen"):
            score()


@pytest.mark.parametrize("value", [math.nan, complex(0, math.nan)])
def test_buffer_of_nan_that_no_pass_changes_is_accepted(value: complex) -> None:
    assert build_scorer(WithBuffer(torch.tensor(value), None)).vocabulary_size == VOCABULARY


def test_replaced_rows_keep_tokens_up_to_their_position() -> None:
    rows, text = draw_tokens(6, LENGTH), np.array([301, 302])
    positions = np.arange(6) * 5
    found = replace_later_tokens(rows, positions, text, np.random.default_rng(0))
    for row, changed, position in zip(rows, found, positions, strict=True):
        assert changed[: position + 1].tolist() == row[: position + 1].tolist()
        assert set(changed[position + 1 :]) <= {301, 302}


WINDOWS, WINDOW_LENGTH = 32, 64


@pytest.mark.parametrize(
    ("bias", "noise", "chosen"),
    [(0.0, 1e-5, "tf32"), (2e-5, 1e-5, "tf32"), (1e-2, 1e-5, "fp32"), (0.0, 0.3, "fp32")],
    ids=["equal", "far below the error", "biased", "uncertain"],
)
def test_benchmarks_take_tf32_only_if_it_changes_the_text_far_less_than_its_error(
    bias: float, noise: float, chosen: str
) -> None:
    rng = np.random.default_rng(0)
    exact = rng.normal(3.0, 0.2, (WINDOWS, 1)) + rng.normal(0, 1.0, (WINDOWS, WINDOW_LENGTH))
    rounded = exact + bias + rng.normal(0, noise, (WINDOWS, WINDOW_LENGTH))
    mask = rng.random((WINDOWS, WINDOW_LENGTH)) < 0.9
    found = compare_precisions(exact, rounded, mask, windows=400)  # whose error is about 0.01 nats a token
    assert found.name == chosen
    assert found.difference == pytest.approx(bias, abs=4 * noise / np.sqrt(WINDOWS * WINDOW_LENGTH))


@pytest.mark.parametrize("scale", [1 + 1e-6, 1.1], ids=["rounding", "another model"])
def test_text_and_its_correction_are_scored_in_fp32_whatever_benchmarks_take(
    monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    """A GPU's rounding is simulated: the head's weights are scaled."""
    torch.set_float32_matmul_precision("highest")  # as a scorer's process begins
    scorer = build_scorer(build_gpt())
    settings: list[tuple[str, str]] = []

    @contextmanager
    def scale_head(precision: str) -> Iterator[None]:
        head = scorer.model.get_parameter("head.weight").data
        exact = head.clone()
        head.mul_(scale if precision == "tf32" else 1.0)
        scorer.unload()
        try:
            with round_products(precision):
                yield
        finally:
            head.copy_(exact)
            scorer.unload()

    calls = {name: getattr(ModelScorer, name) for name in ("score_rows", "score_positions")}
    for name, call in calls.items():

        def record_setting(*arguments: object, name: str = name, call: Any = call) -> object:
            settings.append((name, torch.get_float32_matmul_precision()))
            return call(*arguments)

        monkeypatch.setattr(ModelScorer, name, record_setting)
    monkeypatch.setattr(tf32, "has_tf32", lambda device: True)
    for module in (tf32, text_score):
        monkeypatch.setattr(module, "round_products", scale_head)
    found = describe_checks(score_tokens(scorer, make_texts(40)))
    assert found["products"]["precision"] == ("tf32" if scale < 1.01 else "fp32")
    assert abs(found["products"]["tf32_nats_per_token"]) > 0
    rows = [("score_rows", each) for each in ("highest", "highest", "high", "highest")]  # untrained, both, all
    assert settings == [*rows, *[("score_positions", "highest")] * 2]
