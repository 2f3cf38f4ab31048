"""A job with hours is begun within them and not outside, whatever asks."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from scheduler import estimates, job_groups, leases
from scheduler.models import Job
from tests.support.pool import make_job, make_node

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("begins", "ends", "taken"),
    [
        (None, None, True),
        (-HOUR, HOUR, True),
        (-HOUR, None, True),
        (None, HOUR, True),
        (HOUR, 2 * HOUR, False),
        (-2 * HOUR, -HOUR, False),
    ],
)
def test_job_is_leased_only_within_its_hours(begins: timedelta | None, ends: timedelta | None, taken: bool) -> None:
    now = timezone.now()
    node, _ = make_node()
    make_job(not_before=at(now, begins), not_after=at(now, ends))
    assert (leases.claim_job(node) is not None) == taken


def at(now: datetime, offset: timedelta | None) -> datetime | None:
    return None if offset is None else now + offset


def test_stale_queue_does_not_lease_job_after_its_hours() -> None:
    now = timezone.now()
    node, _ = make_node()
    job = make_job(not_before=now - HOUR, not_after=now + HOUR)
    seen = job_groups.load_queue(now)
    Job.objects.filter(pk=job.pk).update(not_after=now - HOUR / 60)
    assert leases.claim_job(node, queue=seen) is None


def test_other_jobs_start_outside_these_hours() -> None:
    node, _ = make_node()
    make_job(priority=Job.Priority.NIGHTLY, not_before=timezone.now() + HOUR)
    free = make_job()
    granted = leases.claim_job(node)
    assert granted
    free.refresh_from_db()
    assert free.state == Job.State.LEASED


def test_estimate_of_job_outside_its_hours_names_them() -> None:
    make_node()
    opens = timezone.now() + 30 * HOUR
    job = make_job(not_before=opens, not_after=opens + HOUR)
    prospect = estimates.estimate_start(job, timezone.now())
    assert prospect.begins_at == opens
    assert prospect.reason.startswith("It starts in the hours of its track only. They begin at ")


def test_interrupted_job_waits_for_its_next_hours() -> None:
    node, _ = make_node()
    now = timezone.now()
    job = make_job(not_before=now - HOUR, not_after=now + HOUR)
    assert leases.claim_job(node)
    Job.objects.filter(pk=job.pk).update(state=Job.State.QUEUED, not_after=now - HOUR / 2)
    job.leases.all().delete()
    assert leases.claim_job(node) is None
