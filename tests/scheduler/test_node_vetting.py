"""Vetting of nodes after BOINC: ten valid results in a row, then random checks; a mismatch restarts it.

A mismatch also reduces the quota, which valid results restore.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from scheduler import node_vetting
from scheduler.models import Event, Lease, Node, ResultCheck
from scheduler.node_vetting import FIRST_REDUCED_QUOTA, FULL_QUOTA, PROBATION
from tests.support.pool import Agent, create_job, create_node

pytestmark = pytest.mark.sql


@given(st.lists(st.booleans(), max_size=60))
def test_vetting_counts_results_since_the_last_mismatch_and_quota_falls_with_it(history: list[bool]) -> None:
    valid, quota = 0, FULL_QUOTA
    for result in history:
        valid = node_vetting.count_valid_in_a_row(valid, result)
        previous, quota = quota, node_vetting.adjust_quota(quota, result)
        assert 1 <= quota <= FULL_QUOTA
        assert (quota >= previous) if result else (quota < previous or quota == 1)
    trailing = next((i for i, result in enumerate(reversed(history)) if not result), len(history))
    assert valid == trailing
    assert node_vetting.is_vetted(valid) == (trailing >= PROBATION)


@pytest.mark.django_db
def test_vetting_ends_after_ten_valid_results() -> None:
    node, _ = create_node()
    for number in range(PROBATION):
        assert node_vetting.draw_check(node)
        assert not node_vetting.is_result_accepted(node)
        job = create_job()
        assert node_vetting.record_verdict(node, job, True, "It agreed.", actor="site")
        assert not node_vetting.record_verdict(node, job, False, "Something else.", actor="site"), "one check counts"
        if not number:
            (event,) = Event.objects.about(node)
            assert event.sentence == "It agreed. After 9 more in a row its results count before they are compared."
    assert node_vetting.is_result_accepted(node)
    checked = sum(node_vetting.draw_check(node) for _ in range(1000))
    assert 40 < checked < 200, "one of ten results is checked"
    node_vetting.record_verdict(node, create_job(), False, "It did not agree.", actor="site")
    node.refresh_from_db()
    assert not node_vetting.is_result_accepted(node)
    assert node.quota == FIRST_REDUCED_QUOTA
    assert ResultCheck.objects.filter(node=node).count() == PROBATION + 1
    node.trusted = True
    assert node_vetting.is_result_accepted(node)
    assert not any(node_vetting.draw_check(node) for _ in range(50))


def test_quota_limits_jobs_per_day(agent: Agent, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    node = Node.objects.get()
    for number in range(6):
        node_vetting.record_verdict(node, create_job(author=f"check-{number}"), False, "It differs.", actor="site")
    node.refresh_from_db()
    assert (node.quota, node.valid_in_a_row) == (1, 0)
    agent.claim_job().finish("done")
    reply = agent.request_action()
    assert reply.action == "idle"
    assert reply.reason.startswith("Results of this node disagreed with others. It gets one job a day until they agree")
    Lease.objects.update(started_at=timezone.now() - timedelta(hours=25))
    agent.claim_job().finish("done")
    node_vetting.record_verdict(node, create_job(author="check-again"), True, "It agrees.", actor="site")
    agent.claim_job()
    with django_assert_num_queries(0):
        for node in (Node(quota=1, trusted=True), Node()):
            assert node_vetting.get_quota_reset(node, timezone.now()) is None, "trusted, or valid so far"
