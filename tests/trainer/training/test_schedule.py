"""The learning rate over the used part of the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.models.base import Schedule


def test_it_climbs_stays_and_falls_to_its_end() -> None:
    schedule = Schedule(warmup=0.1, warmdown=0.4, final=0.2)
    assert [schedule.scale(f) for f in (0.05, 0.1, 0.5, 0.6)] == [0.5, 1, 1, 1]
    assert schedule.scale(0.8) == pytest.approx(0.6)
    assert schedule.scale(1.0) == pytest.approx(0.2)


def test_the_first_step_does_move() -> None:
    assert Schedule().scale(0) > 0


@given(st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1), st.floats(0, 1))
def test_it_is_a_factor_between_nothing_and_one(warmup: float, warmdown: float, final: float, fraction: float) -> None:
    assert 0 <= Schedule(warmup, warmdown, final).scale(fraction) <= 1


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="must fit"):
        Schedule(warmup=0.5, warmdown=0.6)


def test_a_cosine_climbs_and_falls_half_a_wave() -> None:
    schedule = Schedule(warmup=0.1, final=0.2, shape="cosine")
    assert [schedule.scale(f) for f in (0.05, 0.1, 0.55, 1.0)] == pytest.approx([0.5, 1, 0.6, 0.2])
    assert schedule.scale(0.3) > schedule.scale(0.4) > schedule.scale(0.9)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1.5))
def test_a_cosine_is_between_its_end_and_one(warmup: float, final: float, fraction: float) -> None:
    scale = Schedule(warmup, final=final, shape="cosine").scale(fraction)
    assert min(final, 0.005) <= scale <= 1 + 1e-9


def test_a_warmup_in_steps_starts_at_a_fifth() -> None:
    schedule = Schedule(warmup=0.0, final=0.735, shape="cosine", warmup_steps=10)
    assert [schedule.scale(0.0, steps) for steps in (0, 5, 10, 11)] == pytest.approx([0.2, 0.6, 1, 1])
    assert schedule.scale(1.0, 1000) == pytest.approx(0.735)
    with pytest.raises(ValueError, match="warmup_steps must be at least 0"):
        Schedule(warmup_steps=-1)
