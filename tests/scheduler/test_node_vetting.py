"""Vetting of nodes after BOINC: ten valid results in a row, then random checks; a mismatch restarts it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import node_vetting
from scheduler.models import Event, Node, ResultCheck
from scheduler.node_vetting import PROBATION
from tests.support.pool import create_job, create_node

pytestmark = pytest.mark.sql

histories = st.lists(st.booleans(), max_size=60)


def count_valid_results(history: list[bool]) -> int:
    valid = 0
    for result in history:
        valid = node_vetting.count_valid_in_a_row(valid, result)
    return valid


@given(histories)
def test_vetting_counts_consecutive_results(history: list[bool]) -> None:
    trailing = next((i for i, valid in enumerate(reversed(history)) if not valid), len(history))
    assert count_valid_results(history) == trailing
    assert node_vetting.is_vetted(count_valid_results(history)) == (trailing >= PROBATION)


@given(histories)
def test_vetting_restarts_after_mismatch(history: list[bool]) -> None:
    assert node_vetting.get_check_probability(count_valid_results([*history, False])) == 1
    assert not node_vetting.is_vetted(count_valid_results([*history, False, *[True] * (PROBATION - 1)]))
    assert node_vetting.is_vetted(count_valid_results([*history, False, *[True] * PROBATION]))


@given(st.integers(0, 10**6))
def test_vetting_probability_falls_but_stays_positive(valid: int) -> None:
    chance = node_vetting.get_check_probability(valid)
    assert 0 < chance <= 1
    assert chance == (Fraction(1, valid) if valid >= PROBATION else 1)
    assert all(
        node_vetting.get_check_probability(a) >= node_vetting.get_check_probability(b)
        for a, b in pairwise(range(valid, valid + 5))
    )


@pytest.mark.django_db
def test_result_is_checked_once() -> None:
    node, _ = create_node()
    job = create_job()
    assert node_vetting.record_verdict(node, job, True, "Replayed to the last bit.", actor="node:b")
    assert not node_vetting.record_verdict(node, job, False, "Something else.", actor="node:b")
    node.refresh_from_db()
    assert node.valid_in_a_row == 1
    (event,) = Event.objects.about(node)
    assert event.sentence == (
        "Replayed to the last bit. After 9 more in a row its results count before they are compared."
    )


@pytest.mark.django_db
def test_vetting_ends_after_ten_valid_results() -> None:
    node, _ = create_node()
    for _ in range(PROBATION):
        assert node_vetting.draw_check(node)
        assert not node_vetting.is_result_accepted(node)
        node_vetting.record_verdict(node, create_job(), True, "It agreed.", actor="site")
    assert node_vetting.is_result_accepted(node)
    checked = sum(node_vetting.draw_check(node) for _ in range(1000))
    assert 40 < checked < 200, "one of ten results is checked"
    node_vetting.record_verdict(node, create_job(), False, "It did not agree.", actor="site")
    assert not node_vetting.is_result_accepted(Node.objects.get(pk=node.pk))
    assert ResultCheck.objects.filter(node=node).count() == PROBATION + 1


@pytest.mark.django_db
def test_trusted_node_is_not_checked() -> None:
    node, _ = create_node(trusted=True)
    assert node_vetting.is_result_accepted(node)
    assert not any(node_vetting.draw_check(node) for _ in range(50))
