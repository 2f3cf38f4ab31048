"""Jobs with hours are leased only within them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from scheduler import estimates, job_groups, leases
from scheduler.models import Job
from tests.support.pool import create_job, create_node
from trainer import protocol

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("begins", "ends", "is_leased"),
    [
        (None, None, True),
        (-HOUR, HOUR, True),
        (-HOUR, None, True),
        (None, HOUR, True),
        (HOUR, 2 * HOUR, False),
        (-2 * HOUR, -HOUR, False),
    ],
)
def test_job_is_leased_only_within_its_hours(begins: timedelta | None, ends: timedelta | None, is_leased: bool) -> None:
    now = timezone.now()
    node, _ = create_node()
    create_job(not_before=add_offset(now, begins), not_after=add_offset(now, ends))
    assert (leases.claim_job(node) is not None) == is_leased


def add_offset(now: datetime, offset: timedelta | None) -> datetime | None:
    return None if offset is None else now + offset


def test_estimate_of_job_outside_its_hours_names_them() -> None:
    create_node()
    opens = timezone.now() + 30 * HOUR
    job = create_job(not_before=opens, not_after=opens + HOUR)
    estimate = estimates.estimate_start(job, timezone.now())
    assert estimate.begins_at == opens
    assert estimate.reason.startswith("It starts in the hours of its track only. They begin at ")


def test_interrupted_job_waits_for_its_next_hours() -> None:
    node, _ = create_node()
    now = timezone.now()
    job = create_job(not_before=now - HOUR, not_after=now + HOUR)
    assert leases.claim_job(node)
    leases.finish_lease(job.leases.get(), protocol.FinishLease(outcome="released"))
    queue_within_hours = job_groups.load_queue(now)
    Job.objects.update(not_after=now - HOUR / 60)
    assert leases.claim_job(node) is None
    assert leases.claim_job(node, queue=queue_within_hours) is None, "nor from a queue that was loaded within them"
