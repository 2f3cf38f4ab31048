"""The learning rate over the used part of the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.models.base import Schedule


def test_trapezoid_rises_stays_and_falls() -> None:
    schedule = Schedule(warmup=0.1, warmdown=0.4, final=0.2)
    assert [schedule.scale(f) for f in (0.05, 0.1, 0.5, 0.6)] == [0.5, 1, 1, 1]
    assert schedule.scale(0.8) == pytest.approx(0.6)
    assert schedule.scale(1.0) == pytest.approx(0.2)


def test_first_step_has_positive_rate() -> None:
    assert Schedule().scale(0) > 0


@given(st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1), st.floats(0, 1))
def test_schedule_scale_is_between_0_and_1(warmup: float, warmdown: float, final: float, fraction: float) -> None:
    assert 0 <= Schedule(warmup, warmdown, final).scale(fraction) <= 1


def test_schedule_invalid_fields_raise_value_error() -> None:
    with pytest.raises(ValueError, match="must fit"):
        Schedule(warmup=0.5, warmdown=0.6)


def test_cosine_rises_and_falls() -> None:
    schedule = Schedule(warmup=0.1, final=0.2, shape="cosine")
    assert [schedule.scale(f) for f in (0.05, 0.1, 0.55, 1.0)] == pytest.approx([0.5, 1, 0.6, 0.2])
    assert schedule.scale(0.3) > schedule.scale(0.4) > schedule.scale(0.9)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1.5))
def test_cosine_is_between_final_and_1(warmup: float, final: float, fraction: float) -> None:
    scale = Schedule(warmup, final=final, shape="cosine").scale(fraction)
    assert min(final, 0.005) <= scale <= 1 + 1e-9


def test_warmup_steps_start_at_a_fifth() -> None:
    schedule = Schedule(warmup=0.0, final=0.735, shape="cosine", warmup_steps=10)
    assert [schedule.scale(0.0, steps) for steps in (0, 5, 10, 11)] == pytest.approx([0.2, 0.6, 1, 1])
    assert schedule.scale(1.0, 1000) == pytest.approx(0.735)
    with pytest.raises(ValueError, match="warmup_steps must be at least 0"):
        Schedule(warmup_steps=-1)


def test_momentum_rises_stays_and_falls_with_the_rate() -> None:
    schedule = Schedule(warmdown=0.4, momentum_start=0.85, momentum_warmup=0.2, momentum_end=0.9)
    values = [schedule.compute_momentum(0.97, fraction) for fraction in (0, 0.1, 0.2, 0.6, 0.8, 1)]
    assert values == pytest.approx([0.85, 0.91, 0.97, 0.97, 0.935, 0.9])
    assert {Schedule().compute_momentum(0.95, fraction) for fraction in (0, 0.5, 1)} == {0.95}


@pytest.mark.parametrize("wrong", [{"momentum_start": 1.0}, {"momentum_end": -0.1}, {"momentum_warmup": 0.0}])
def test_impossible_momentum_raises_value_error(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Schedule(**wrong)


def test_schedule_with_unknown_shape_lists_the_shapes() -> None:
    with pytest.raises(ValueError, match=r"a schedule's shape 'cosin' is not one of \(.*'cosine'\)"):
        Schedule(shape="cosin")  # type: ignore[arg-type]
