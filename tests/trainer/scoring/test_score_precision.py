"""Rounding of matrix products: TF32 for benchmarks on a GPU, and for text where it changes next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from tests.support.scored_runs import build_gpt, build_scorer, make_texts, score_tokens
from trainer.scoring import text_score, tf32
from trainer.scoring.model_scorer import ModelScorer
from trainer.scoring.text_score import describe_checks
from trainer.scoring.tf32 import compare_precisions, use_tf32

WINDOWS, LENGTH = 32, 64


@pytest.mark.parametrize(("device", "within"), [("cuda", "high"), ("cpu", "highest")])
def test_only_products_on_a_gpu_round_to_tf32(device: str, within: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with use_tf32(torch.device(device)):
            assert torch.get_float32_matmul_precision() == within
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("bias", "noise", "chosen"),
    [(0.0, 1e-5, "tf32"), (2e-5, 1e-5, "tf32"), (1e-2, 1e-5, "fp32"), (0.0, 0.3, "fp32")],
    ids=["equal", "far below the error", "biased", "uncertain"],
)
def test_text_is_scored_in_tf32_only_if_it_changes_far_less_than_the_error(
    bias: float, noise: float, chosen: str
) -> None:
    rng = np.random.default_rng(0)
    exact = rng.normal(3.0, 0.2, (WINDOWS, 1)) + rng.normal(0, 1.0, (WINDOWS, LENGTH))
    rounded = exact + bias + rng.normal(0, noise, (WINDOWS, LENGTH))
    mask = rng.random((WINDOWS, LENGTH)) < 0.9
    found = compare_precisions(exact, rounded, mask, windows=400)  # whose error is about 0.01 nats a token
    assert found.name == chosen
    assert found.difference == pytest.approx(bias, abs=4 * noise / np.sqrt(WINDOWS * LENGTH))


@pytest.mark.parametrize("scale", [1 + 1e-6, 1.1], ids=["rounding", "another model"])
def test_record_says_how_products_were_rounded(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """A GPU's rounding is simulated: the head's weights are scaled."""
    scorer = build_scorer(build_gpt())
    passes: list[float] = []

    @contextmanager
    def scale_head(_: torch.device) -> Iterator[None]:
        head = scorer.model.get_parameter("head.weight").data
        exact = head.clone()
        head.mul_(scale)
        scorer.unload()
        try:
            yield
        finally:
            head.copy_(exact)
            scorer.unload()

    score_rows = ModelScorer.score_rows

    def record_scale(*arguments: object) -> object:
        passes.append(float(scorer.model.get_parameter("head.weight").detach().norm()))
        return score_rows(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tf32, "has_tf32", lambda device: True)
    for module in (tf32, text_score):
        monkeypatch.setattr(module, "use_tf32", scale_head)
    monkeypatch.setattr(ModelScorer, "score_rows", record_scale)
    found = describe_checks(score_tokens(scorer, make_texts(40)))["products"]
    is_tf32 = scale < 1.01
    assert found["precision"] == ("tf32" if is_tf32 else "fp32")
    assert abs(found["tf32_nats_per_token"]) > 0
    untrained, exact, rounded, whole = passes
    assert untrained == exact
    assert whole == (rounded if is_tf32 else exact)


def test_score_on_a_cpu_says_fp32() -> None:
    found = describe_checks(score_tokens(build_scorer(build_gpt()), make_texts(40)))["products"]
    assert found == {"precision": "fp32", "tf32_nats_per_token": None, "tf32_stderr": None}
