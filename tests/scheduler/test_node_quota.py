"""A machine whose results do not agree gets less and less; one whose results agree gets it back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from scheduler import node_vetting
from scheduler.models import Lease, Node
from scheduler.node_vetting import FIRST_REDUCED_QUOTA, FULL_QUOTA
from tests.support.pool import Agent, make_job, make_node


@given(st.lists(st.booleans(), max_size=60))
def test_quota_stays_in_bounds_and_falls_on_mismatch(results: list[bool]) -> None:
    now = FULL_QUOTA
    for valid in results:
        then, now = now, node_vetting.adjust_quota(now, valid)
        assert 1 <= now <= FULL_QUOTA
        assert (now >= then) if valid else (now < then or now == 1)


def test_quota_shrinks_fast_and_recovers() -> None:
    shrinking, value = [], FULL_QUOTA
    for _ in range(6):
        value = node_vetting.adjust_quota(value, False)
        shrinking.append(value)
    assert shrinking == [16, 8, 4, 2, 1, 1]
    growing = []
    for _ in range(5):
        value = node_vetting.adjust_quota(value, True)
        growing.append(value)
    assert growing == [2, 4, 8, FIRST_REDUCED_QUOTA, FULL_QUOTA]


def test_quota_limits_jobs_per_day(db: None) -> None:
    node, token = make_node()
    agent = Agent(token)
    for number in range(6):
        node_vetting.record_verdict(node, make_job(author=f"check-{number}"), False, "It differs.", actor="site")
    node.refresh_from_db()
    assert (node.quota, node.valid_in_a_row) == (1, 0)
    agent.work().finish("done")
    refused = agent.ask()
    assert refused.action == "idle"
    assert refused.reason.startswith(
        "Results of this node disagreed with others. It gets one job a day until they agree"
    )
    Lease.objects.update(started_at=timezone.now() - timedelta(hours=25))
    agent.work().finish("done")
    node_vetting.record_verdict(node, make_job(author="check-again"), True, "It agrees.", actor="site")
    agent.work()


def test_quota_of_trusted_or_valid_node_takes_no_query(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    now = timezone.now()
    with django_assert_num_queries(0):
        assert node_vetting.get_quota_reset(Node(quota=1, trusted=True), now) is None
        assert node_vetting.get_quota_reset(Node(), now) is None


@pytest.mark.django_db
def test_repeated_result_check_counts_once() -> None:
    node, job = make_node()[0], make_job()
    assert node_vetting.record_verdict(node, job, False, "It differs.", actor="site")
    assert not node_vetting.record_verdict(node, job, False, "It differs.", actor="site")
    node.refresh_from_db()
    assert node.quota == FIRST_REDUCED_QUOTA
