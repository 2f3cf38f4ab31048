"""Properties of the multiplier for any track."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated_tracks import LADDER, Night
from trainer.scoring.multiplier import compare_entries, parse_results

NIGHTS = st.builds(
    lambda seed, first, second, runs: Night(seed).ladder().entry("a", first, runs).entry("b", second, 2),
    seed=st.integers(0, 2**32 - 1),
    first=st.floats(0.7, 1.6),
    second=st.floats(0.7, 1.6),
    runs=st.integers(1, 4),
)
few = settings(max_examples=40, deadline=None)


@few
@given(NIGHTS, st.floats(1e-12, 1e12))
def test_multiplier_is_independent_of_compute_unit(night: Night, unit: float) -> None:
    other = [{**record, "flops": record["flops"] * unit} for record in night.records]
    for one, two in zip(night.board().entries, compare_entries(parse_results(other), "gpt").entries, strict=True):
        assert (one.entry, one.verdict, one.tied_with) == (two.entry, two.verdict, two.tied_with)
        for before, after in ((one.cm, two.cm), (one.low, two.low), (one.high, two.high)):
            assert before == after if before is None else before == pytest.approx(after, rel=1e-8)


@few
@given(NIGHTS, st.randoms(use_true_random=False))
def test_comparison_is_independent_of_run_order(night: Night, shuffler: random.Random) -> None:
    shuffled = list(night.records)
    shuffler.shuffle(shuffled)
    assert compare_entries(parse_results(shuffled), "gpt").to_dict() == night.board().to_dict()


@few
@given(NIGHTS, st.floats(1e-5, 5e-3))
def test_multiplier_rises_as_loss_falls(night: Night, gain: float) -> None:
    before = night.board()["a"].cm
    for record in night.records:
        if record["entry"] == "a":
            record["bits_per_byte"] -= gain
    after = night.board()["a"].cm
    assert after > before


@few
@given(NIGHTS, st.floats(0.5, 2.0))
def test_multiplier_is_independent_of_full_budget(night: Night, factor: float) -> None:
    one, two = night.board(full=1e18), night.board(full=1e18 * factor)
    if not one.ladder.is_narrowed and not two.ladder.is_narrowed:
        assert one["a"].cm == pytest.approx(two["a"].cm, rel=1e-9)


@few
@given(NIGHTS)
def test_verdict_ties_and_interval_are_consistent(night: Night) -> None:
    board = night.board()
    rows = {row.entry: row for row in board.entries}
    for row in board.entries:
        if row.cm is None or row.low is None or row.high is None:
            assert row.verdict.startswith("not resolvable")
            continue
        assert row.low < row.cm < row.high
        assert (row.low <= 1 <= row.high) == (row.verdict in ("tied with the baseline", "the baseline"))
        assert all(row.entry in rows[other].tied_with for other in row.tied_with)
        assert row.seeds_needed is None or row.seeds_needed >= 0
    ranks = [row.rank for row in board.entries if row.rank is not None]
    assert ranks[0] == 1
    assert all(rank <= place for place, rank in enumerate(ranks, start=1))
    assert [row.cm for row in board.entries] == sorted((row.cm or 0 for row in board.entries), reverse=True)


@few
@given(st.integers(0, 2**32 - 1), st.floats(0.999, 1.001))
def test_rounded_compute_stays_in_its_rung(seed: int, rounding: float) -> None:
    exact, rounded = Night(seed).ladder().entry("a", 1.1, 2), Night(seed).ladder().entry("a", 1.1, 2)
    for record in rounded.records[::2]:
        record["flops"] *= rounding
    one, two = exact.board().ladder, rounded.board().ladder
    assert one.freedom == two.freedom == sum(seeds - 1 for _, seeds in LADDER)
    # A thousandth of compute is a tenth of sigma here.
    assert float(one.sigma) == pytest.approx(float(two.sigma), rel=0.15)
