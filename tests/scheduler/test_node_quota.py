"""The quota of a node: mismatches reduce it, valid results restore it."""

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
from tests.support.pool import Agent, create_job, create_node


@given(st.lists(st.booleans(), max_size=60))
def test_quota_stays_in_bounds_and_falls_on_mismatch(results: list[bool]) -> None:
    quota = FULL_QUOTA
    for valid in results:
        previous, quota = quota, node_vetting.adjust_quota(quota, valid)
        assert 1 <= quota <= FULL_QUOTA
        assert (quota >= previous) if valid else (quota < previous or quota == 1)


def test_quota_limits_jobs_per_day(db: None) -> None:
    node, token = create_node()
    agent = Agent(token)
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


def test_quota_of_trusted_or_valid_node_takes_no_query(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    now = timezone.now()
    with django_assert_num_queries(0):
        assert node_vetting.get_quota_reset(Node(quota=1, trusted=True), now) is None
        assert node_vetting.get_quota_reset(Node(), now) is None


@pytest.mark.django_db
def test_repeated_result_check_counts_once() -> None:
    node, job = create_node()[0], create_job()
    assert node_vetting.record_verdict(node, job, False, "It differs.", actor="site")
    assert not node_vetting.record_verdict(node, job, False, "It differs.", actor="site")
    node.refresh_from_db()
    assert node.quota == FIRST_REDUCED_QUOTA
