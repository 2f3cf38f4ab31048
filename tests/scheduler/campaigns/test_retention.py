"""What of the dataset swarm is forgotten after a while, and what stays."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from scheduler.campaigns import retention, shards, statistics, transitions
from scheduler.campaigns.models import Assignment, Campaign, Contribution, Rephrasing
from scheduler.models import Job, Lease
from tests.support.volunteers import echo, make_campaign, produced, sit_down

LATER = timedelta(days=365)


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """Written once badly, then well; one packet came back unwritten."""
    made = produced(make_campaign(settings, tmp_path))
    eve, ada = sit_down("eve"), sit_down("ada")
    eve.hand_in(*(eve.result(packet, echo) for packet in eve.take(3)))
    eve.take(1)
    eve.work.finish("released")
    ada.hand_in(*(ada.result(packet) for packet in ada.take(100)))
    ada.work.finish()
    shards.update_shards()
    transitions.finish_complete_campaigns()
    return made


def test_texts_that_are_in_no_dataset_go_and_their_counts_stay(campaign: Campaign) -> None:
    good = set(Rephrasing.objects.filter(state="accepted").values_list("pk", flat=True))
    bad = Rephrasing.objects.exclude(state="accepted").count()
    counted = (
        statistics.list_rejections(campaign),
        statistics.compute_progress(campaign).rejected,
        list(Contribution.objects.values("rejection_reasons")),
    )
    assert bad > 0
    assert retention.delete_expired() == {"texts": 0, "assignments": 0, "sessions": 0}
    assert retention.delete_expired(timezone.now() + LATER)["texts"] == bad
    assert set(Rephrasing.objects.values_list("pk", flat=True)) == good
    assert Assignment.objects.filter(state="submitted", rephrasings__state="accepted").exists(), "whose it is, is known"
    assert counted == (
        statistics.list_rejections(campaign),
        statistics.compute_progress(campaign).rejected,
        list(Contribution.objects.values("rejection_reasons")),
    )
    assert not Assignment.objects.filter(state="released").exists()


def test_sittings_that_nobody_took_go_and_what_was_given_stays(campaign: Campaign) -> None:
    leases = list(Lease.objects.order_by("pk").values("pk", "seconds"))
    assert Job.objects.filter(kind="rephrase", leases=None, state="cancelled").exists(), "the campaign is done"
    retention.delete_expired(timezone.now() + LATER)
    assert not Job.objects.filter(kind="rephrase", leases=None).exists()
    assert list(Lease.objects.order_by("pk").values("pk", "seconds")) == leases


def test_what_waits_is_kept(db: None, settings: Any, tmp_path: Path) -> None:
    produced(make_campaign(settings, tmp_path))
    ada = sit_down("ada")
    ada.take(2)
    jobs = Job.objects.count()
    retention.delete_expired(timezone.now() + LATER)
    assert Job.objects.count() == jobs
    assert Assignment.objects.filter(state="active").count() == 2
