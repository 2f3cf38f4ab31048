"""Time of a score: FLOPs of a pass against counted ones, speeds of GPUs, limits."""

from __future__ import annotations

import pytest

from tests.support.traced_models import trace
from trainer.accounting.peak_flops import PEAK_FLOPS
from trainer.accounting.scoring_time import (
    FP32_FLOPS,
    SLOWEST_SCORERS,
    ScoringWork,
    choose_slowest_scorer,
    compute_pass_flops,
    get_fp32_flops,
    get_tf32_flops,
)
from trainer.accounting.training_size import compute_model_size
from trainer.graph.summary import describe_traced

NIGHT = ScoringWork(3.6e12, 7200, 51_500)


def test_pass_flops_of_the_baseline_are_those_of_its_graph() -> None:
    summary = describe_traced(trace("gpt"))
    size = compute_model_size({"model": {"depth": 2}}, vocabulary_size=summary["vocabulary_size"])
    assert size is not None
    length = summary["sequence_length"]
    head = 2 * size.width * size.vocabulary_size
    counted = length * (summary["scoring_flops_per_token"] + head)
    assert compute_pass_flops(size, length) == pytest.approx(counted, rel=0.1)


def test_pass_flops_of_rwkv5_are_two_for_each_parameter_that_multiplies() -> None:
    size = compute_model_size({"arch": "rwkv5-1b5"}, vocabulary_size=65_536)
    assert size is not None
    assert compute_pass_flops(size, 100) == 200 * (size.parameters - 65_536 * 2048)


def test_every_card_has_an_fp32_speed_below_that_of_its_tensor_cores() -> None:
    assert FP32_FLOPS.keys() <= PEAK_FLOPS.keys()
    for name in PEAK_FLOPS:
        assert get_fp32_flops(name) <= get_tf32_flops(name) <= PEAK_FLOPS[name], name


def test_limit_covers_every_larger_card_and_unknown_ones_have_no_estimate() -> None:
    limit = NIGHT.compute_limit(choose_slowest_scorer(13.9e9))
    for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090", "NVIDIA A100-SXM4-80GB", SLOWEST_SCORERS[0][1]):
        seconds = NIGHT.estimate_seconds(gpu)
        assert seconds is not None
        assert seconds < limit
    slow = NIGHT.estimate_seconds("Tesla T4")
    assert slow is not None
    assert slow > limit
    assert NIGHT.estimate_seconds("Voodoo 2") is None


def test_night_on_a_cpu_takes_longer_than_its_limit_of_a_day() -> None:
    seconds = ScoringWork(3.6e12, 7200, 51_500).estimate_seconds("")
    assert seconds is not None
    assert seconds > NIGHT.compute_limit("") == 86_400
    assert ScoringWork(1e9, 100, 0).compute_limit("") == 3600


@pytest.mark.parametrize(("memory", "card"), [(1e9, "RTX 4060 Ti"), (2e10, "RTX 3090"), (65e9, "A100")])
def test_slowest_scorer_has_the_memory(memory: float, card: str) -> None:
    assert choose_slowest_scorer(memory) == card
