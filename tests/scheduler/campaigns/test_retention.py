"""Deletion of old rows of the dataset swarm."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from scheduler.campaigns import retention, shards, statistics, transitions
from scheduler.campaigns.models import Assignment, Campaign, Contribution, Rephrasing
from scheduler.models import Job, Lease
from tests.support.volunteers import copy_source, fill_campaign, make_campaign, start_volunteer

LATER = timedelta(days=365)


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """A finished campaign with rejected texts and a released packet."""
    campaign = fill_campaign(make_campaign(settings, tmp_path))
    eve, ada = start_volunteer("eve"), start_volunteer("ada")
    eve.submit(*(eve.result(packet, copy_source) for packet in eve.take(3)))
    eve.take(1)
    eve.claimed_job.finish("released")
    ada.submit(*(ada.result(packet) for packet in ada.take(100)))
    ada.claimed_job.finish()
    shards.update_shards()
    transitions.finish_complete_campaigns()
    return campaign


def test_retention_deletes_unused_texts_and_keeps_counts(campaign: Campaign) -> None:
    accepted = set(Rephrasing.objects.filter(state="accepted").values_list("pk", flat=True))
    rejected_count = Rephrasing.objects.exclude(state="accepted").count()
    counts = (
        statistics.list_rejections(campaign),
        statistics.compute_progress(campaign).rejected,
        list(Contribution.objects.values("rejection_reasons")),
    )
    assert rejected_count > 0
    assert retention.delete_expired() == {"texts": 0, "assignments": 0, "sessions": 0}
    assert retention.delete_expired(timezone.now() + LATER)["texts"] == rejected_count
    assert set(Rephrasing.objects.values_list("pk", flat=True)) == accepted
    assert Assignment.objects.filter(state="submitted", rephrasings__state="accepted").exists(), (
        "assignments of published texts stay"
    )
    assert counts == (
        statistics.list_rejections(campaign),
        statistics.compute_progress(campaign).rejected,
        list(Contribution.objects.values("rejection_reasons")),
    )
    assert not Assignment.objects.filter(state="released").exists()


def test_retention_deletes_unclaimed_sessions_and_keeps_leases(campaign: Campaign) -> None:
    leases = list(Lease.objects.order_by("pk").values("pk", "seconds"))
    assert Job.objects.filter(kind="rephrase", leases=None, state="cancelled").exists(), "the campaign is done"
    retention.delete_expired(timezone.now() + LATER)
    assert not Job.objects.filter(kind="rephrase", leases=None).exists()
    assert list(Lease.objects.order_by("pk").values("pk", "seconds")) == leases


def test_retention_keeps_active_assignments(db: None, settings: Any, tmp_path: Path) -> None:
    fill_campaign(make_campaign(settings, tmp_path))
    ada = start_volunteer("ada")
    ada.take(2)
    jobs = Job.objects.count()
    retention.delete_expired(timezone.now() + LATER)
    assert Job.objects.count() == jobs
    assert Assignment.objects.filter(state="active").count() == 2
