"""A question whose SQL was made before gives what the queryset would give."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import BigIntegerField, DateTimeField, F
from django.utils import timezone
from station import make_job, make_node

from scheduler.models import Job, Node
from scheduler.prepared import Later, Prepared, PreparedUpdate

pytestmark = pytest.mark.django_db
WAITING = Prepared(
    lambda: (
        Job.objects.filter(
            needs_labels=Later("labels", Job._meta.get_field("needs_labels")),
            queued_at__lt=Later("before", DateTimeField()),
        )
        .select_related("release", "entry")
        .order_by("pk")
    )
)
ATTEMPT = PreparedUpdate(
    lambda: (
        Job.objects.filter(pk=Later("job", BigIntegerField()), state=Job.State.QUEUED),
        {"attempts": F("attempts") + 1, "queued_at": Later("now", DateTimeField())},
    )
)


@pytest.mark.parametrize("labels", [[], ["1x24gb", "h100"]])
def test_rows_are_those_of_the_queryset_with_what_they_point_at(labels: list[str]) -> None:
    now = timezone.now()
    jobs = [make_job(needs_labels=wanted, result={"a": [1.5, None]}) for wanted in ([], ["1x24gb", "h100"]) * 2]
    make_job(needs_labels=labels, queued_at=now + timedelta(hours=1))
    found = WAITING.rows(labels=labels, before=timezone.now())
    same = list(Job.objects.filter(pk__in=[job.pk for job in jobs], needs_labels=labels).order_by("pk"))
    assert found == same
    fields = [field.attname for field in Job._meta.concrete_fields]
    assert [[getattr(job, name) for name in fields] for job in found] == [
        [getattr(job, name) for name in fields] for job in same
    ]
    assert all(Job.release.is_cached(job) and job.entry is None for job in found)
    assert not any(job._state.adding for job in found)


def test_what_is_not_there_is_nothing() -> None:
    assert WAITING.rows(labels=["none"], before=timezone.now()) == []
    assert WAITING.first(labels=["none"], before=timezone.now()) is None


def test_an_update_says_how_many_rows_it_changed() -> None:
    job, now = make_job(), timezone.now()
    assert ATTEMPT.run(job=job.pk, now=now) == 1
    assert ATTEMPT.run(job=job.pk + 1, now=now) == 0
    job.refresh_from_db()
    assert (job.attempts, job.queued_at) == (1, now)


def test_text_from_outside_is_a_value_and_no_sql() -> None:
    of_name = Prepared(lambda: Node.objects.filter(name=Later("name", Node._meta.get_field("name"))))
    name = "x' OR 1=1 -- %s"
    node, _ = make_node(name)
    make_node("other")
    assert of_name.rows(name=name) == [node]
