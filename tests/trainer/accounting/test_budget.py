"""Budgets: parsing, text form and used fraction."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer.accounting.budget import LIMITS, Budget, Usage


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("24h", "seconds", 86_400),
        ("3m", "seconds", 180),
        ("1.5h", "seconds", 5400),
        ("90 min", "seconds", 5400),
        ("1d", "seconds", 86_400),
        ("3B-tokens", "tokens", 3e9),
        ("10m tokens", "tokens", 1e7),
        ("1-step", "steps", 1),
        ("10k-steps", "steps", 10_000),
        ("2.5e12-FLOPs", "flops", 2.5e12),
    ],
)
def test_parse_valid_text_returns_budget(text: str, kind: str, amount: float) -> None:
    budget = Budget.parse(text)
    assert (budget.kind, budget.amount) == (kind, amount)


IMPOSSIBLE = ["", "0s", "-5s", "0steps", "0.5s", "60", "soon", "3B", "1.5steps", "nans", "1e400s", "15s15s"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [*((text, "impossible") for text in IMPOSSIBLE), *((text, "from 1 to") for text in ("400d", "1e15steps"))],
)
def test_parse_impossible_text_raises_one_line(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refusal:
        Budget.parse(text)
    assert "\n" not in str(refusal.value)


AMOUNTS = {
    kind: st.floats(1, most) if kind in ("seconds", "flops") else st.integers(1, int(most)).map(float)
    for kind, most in LIMITS.items()
}
BUDGETS = st.sampled_from(sorted(LIMITS)).flatmap(lambda kind: st.builds(Budget, st.just(kind), AMOUNTS[kind]))


@given(BUDGETS)
def test_str_parses_back_to_the_same_budget(budget: Budget) -> None:
    assert Budget.parse(str(budget)) == budget


@given(st.text(max_size=20))
def test_parse_any_text_returns_budget_or_raises_value_error(text: str) -> None:
    try:
        budget = Budget.parse(text)
    except ValueError:
        return
    assert budget.amount >= 1


@given(BUDGETS, st.integers(1, 10**7), st.floats(1, 1e15))
def test_used_fraction_with_known_steps_is_exact(budget: Budget, tokens: int, flops: float) -> None:
    steps = budget.steps(tokens, flops)
    if steps is None:
        assert budget.kind == "seconds"
        return
    assume(steps < 2**50)  # beyond, fractions one step apart are the same number
    assert budget.used_fraction(Usage(steps=steps), tokens, flops) == 1
    assert budget.used_fraction(Usage(steps=steps - 1), tokens, flops) < 1
    price = {"steps": 1, "tokens": tokens, "flops": flops}[budget.kind]
    assert steps == 1 or (steps - 1) * price < budget.amount * (1 + 1e-12)


@given(BUDGETS, st.integers(0, 10**6), st.floats(0, 1e7))
def test_used_fraction_stays_between_zero_and_one(budget: Budget, steps: int, seconds: float) -> None:
    assert 0 <= budget.used_fraction(Usage(steps=steps, seconds=seconds), 2048, 1e9) <= 1


def test_used_fraction_of_flops_begins_with_the_initialization() -> None:
    budget = Budget.parse("1e9flops")
    fractions = [budget.used_fraction(Usage(steps=steps), 100, 2e8, 6e8) for steps in (0, 1, 2)]
    assert fractions == [0.6, 0.8, 1.0]
    assert budget.used_fraction(Usage(), 100, 5e7, 1e9) == 1


@given(BUDGETS, st.sampled_from([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0]))
def test_times_is_exact_and_parses_back(budget: Budget, factor: float) -> None:
    try:
        rung = budget.times(factor)
    except ValueError:
        assert not 1 <= budget.amount * factor <= LIMITS[budget.kind]
        return
    assert Budget.parse(str(rung)) == rung
    if budget.kind in ("seconds", "flops"):
        assert rung.amount == budget.amount * factor
    else:
        assert rung.amount == round(rung.amount) >= 1
        assert rung.amount == 1 or abs(rung.amount - budget.amount * factor) <= 0.5
