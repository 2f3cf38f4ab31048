"""`benchmarks/scaling_laws.py`: best settings, power laws through them, and the errors of rules."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks import scaling_laws
from trainer.errors import UserError

RATES = (0.01, 0.02, 0.04, 0.08)


def make_point(width: int, best: float) -> dict[str, Any]:
    rows = [{"bits_per_byte": 2 + 0.01 * math.log(rate / best) ** 2} for rate in RATES]
    return {"size": f"4x{width}", "width": width, **scaling_laws.fit_best(RATES, rows)}


def test_fit_best_finds_lowest_point_of_a_parabola() -> None:
    point = make_point(128, 0.03)
    assert point["best"] == pytest.approx(0.03)
    assert point["bound"] is None


def test_fit_best_outside_the_settings_is_bounded() -> None:
    assert (make_point(128, 0.2)["best"], make_point(128, 0.2)["bound"]) == (pytest.approx(0.08), "high")
    assert make_point(128, 0.002)["bound"] == "low"


def test_fit_best_leaves_out_diverged_runs() -> None:
    rows = [{"bits_per_byte": loss} for loss in (2.0, None, 1.9, None)]
    point = scaling_laws.fit_best(RATES, rows)
    assert (point["best"], point["bound"]) == (pytest.approx(0.04), "few")


def test_fit_best_of_diverged_runs_alone_says_what_to_do() -> None:
    with pytest.raises(UserError, match="lower --factors"):
        scaling_laws.fit_best(RATES, [{"bits_per_byte": None}] * 4)


@pytest.mark.parametrize(("exponent", "rule"), [(0.0, "constant (nanochat's for Muon)"), (-1.0, "1/width (muP)")])
def test_compare_rules_finds_the_rule_that_holds(exponent: float, rule: str) -> None:
    points = [make_point(width, 0.03 * (width / 256) ** exponent) for width in (192, 224, 256, 320)]
    found = scaling_laws.compare_rules(points)
    assert found["rate_exponent"] == pytest.approx(exponent, abs=1e-6)
    errors = {name: abs(each["error"]) for name, each in found["predictions"].items()}
    assert errors[rule] == pytest.approx(0, abs=1e-6)
    assert errors["fitted"] == pytest.approx(0, abs=1e-6)
    assert errors["1/sqrt(width)"] > 0.1
    costs = {name: each["cost"] for name, each in found["predictions"].items()}
    assert costs["1/sqrt(width)"] > costs[rule] == pytest.approx(0, abs=1e-9)


def test_fit_batch_law_finds_the_exponent() -> None:
    batches = [{"tokens": tokens, "best": 3 * tokens**0.4} for tokens in (1e5, 2e5, 4e5)]
    assert scaling_laws.fit_batch_law(batches)["batch_exponent"] == pytest.approx(0.4)


def test_fit_batch_law_of_equal_lengths_is_not_resolved() -> None:
    batches = [{"tokens": tokens, "best": 1000} for tokens in (1e5, 1.01e5, 1.02e5)]
    assert scaling_laws.fit_batch_law(batches) == {"batch_exponent": None}


def test_format_rates_names_settings_errors_and_costs() -> None:
    points = [make_point(width, 0.03) for width in (128, 192, 256, 320)]
    table = scaling_laws.format_rates({"rates": points, **scaling_laws.compare_rules(points)})
    assert "| 4x320 | 0.0300 | 0.01: 2.0121" in table
    assert "| constant (nanochat's for Muon), width^0.00 | 0.0300 | " in table


def test_format_batches_of_unresolved_law_names_no_exponent() -> None:
    rows = [{"bits_per_byte": loss} for loss in (2.1, 2.0, 2.2)]
    batch = {"size": "2x128", "tokens": 40_000, **scaling_laws.fit_best((512, 1024, 2048), rows)}
    laws = {"batches": [batch] * 2, **scaling_laws.fit_batch_law([batch] * 2)}
    assert "| 2x128 | 40,000 | " in scaling_laws.format_batches(laws)
    assert "Best batch: not resolved" in scaling_laws.format_batches(laws)
