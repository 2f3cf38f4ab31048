"""Deletion of old rows of the dataset swarm."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from scheduler.campaigns import retention, shards, statistics, transitions
from scheduler.campaigns.models import Assignment, Campaign, Contribution, Rephrasing
from scheduler.models import Job, Lease
from tests.support.volunteers import copy_source, start_volunteer

LATER = timedelta(days=365)


@pytest.fixture
def finished_campaign(campaign: Campaign) -> Campaign:
    """A finished campaign with rejected texts and a released packet."""
    eve, ada = start_volunteer("eve"), start_volunteer("ada")
    eve.submit(*(eve.result(packet, copy_source) for packet in eve.take(3)))
    eve.take(1)
    eve.claimed_job.finish("released")
    ada.submit(*(ada.result(packet) for packet in ada.take(100)))
    ada.claimed_job.finish()
    shards.update_shards()
    transitions.finish_complete_campaigns()
    return campaign


def count_results(campaign: Campaign) -> tuple[Any, ...]:
    leases = list(Lease.objects.order_by("pk").values("pk", "seconds"))
    rejected = statistics.compute_progress(campaign).rejected
    reasons = list(Contribution.objects.values("rejection_reasons"))
    return statistics.list_rejections(campaign), rejected, reasons, leases


def test_retention_deletes_unused_texts_and_sessions_and_keeps_counts(finished_campaign: Campaign) -> None:
    accepted = set(Rephrasing.objects.filter(state="accepted").values_list("pk", flat=True))
    rejected_count, counts = Rephrasing.objects.exclude(state="accepted").count(), count_results(finished_campaign)
    unclaimed_sessions = Job.objects.filter(kind="rephrase", leases=None)
    assert rejected_count > 0
    assert unclaimed_sessions.filter(state="cancelled").exists(), "the campaign is done"
    assert retention.delete_expired() == {"texts": 0, "assignments": 0, "sessions": 0}
    assert retention.delete_expired(timezone.now() + LATER)["texts"] == rejected_count
    assert set(Rephrasing.objects.values_list("pk", flat=True)) == accepted
    published = Assignment.objects.filter(state="submitted", rephrasings__state="accepted")
    assert published.exists(), "assignments of published texts stay"
    assert not Assignment.objects.filter(state="released").exists()
    assert not unclaimed_sessions.exists()
    assert count_results(finished_campaign) == counts


def test_retention_keeps_active_assignments(campaign: Campaign) -> None:
    start_volunteer("ada").take(2)
    jobs = Job.objects.count()
    retention.delete_expired(timezone.now() + LATER)
    assert Job.objects.count() == jobs
    assert Assignment.objects.filter(state="active").count() == 2
