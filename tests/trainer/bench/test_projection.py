"""`benchmarks/projection.py`: its law goes through the record run, and the pages show what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import projection
from tests.support.paths import REPOSITORY


def test_pages_have_the_tables_of_the_script() -> None:
    recipe = projection.read_recipe(projection.PEERS)
    for page, table in (
        ("docs/explanation/projection.md", projection.format_projections(recipe)),
        ("benchmarks/results/projection.md", projection.format_inputs(recipe)),
    ):
        assert table in (REPOSITORY / page).read_text(), "run `python -m benchmarks.projection` and replace the table"


def test_flops_and_hours_equal_nanochats_record() -> None:
    """123,000 tokens/s at 59 % of 989e12 FLOP/s."""
    flops = projection.count_flops_per_token(24)
    assert flops == pytest.approx(0.59 * 989e12 / 123_000, rel=0.02)
    assert projection.find_hours(24, 123_000 * flops * 3600, 1.0) == pytest.approx(13.2, rel=0.02)


def test_read_recipe_takes_largest_measured_size(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    rows = [
        {"entry": "gpt", "size": "2x128", "budget": 1e12, "flops": {"cm": 1.3, "low": 1.2, "high": 1.4}},
        {"entry": "gpt", "size": "3x192", "budget": 2e12, "flops": {"cm": 1.1, "low": 1.0, "high": 1.2}},
        {"entry": "gpt with memory", "size": "3x192", "budget": 2e12, "flops": {"cm": 1.5, "low": 1.4, "high": 1.6}},
        {"entry": "gpt", "size": "4x256", "budget": 4e12, "flops": {"verdict": "no runs"}},
    ]
    file.write_text(json.dumps({"multipliers": rows}))
    recipe = projection.read_recipe(file)
    assert (recipe.value, recipe.low, recipe.high) == (1.1, 1.0, 1.2)
    assert "3x192" in recipe.source
    assert projection.read_recipe(tmp_path / "missing.json") == projection.UNKNOWN_RECIPE
