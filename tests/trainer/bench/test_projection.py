"""`benchmarks/projection.py`: its law goes through the record run, and the pages show what it prints."""

from __future__ import annotations

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
