"""A question whose SQL was made before gives what the queryset would give."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import BigIntegerField, CharField, Count, DateTimeField, F, Min, OuterRef, Subquery
from django.utils import timezone

from scheduler.models import Blob, Event, Job, Node, Window
from scheduler.models.events import ADD
from scheduler.prepared import (
    Later,
    NextNumber,
    Prepared,
    PreparedInsert,
    PreparedInserts,
    PreparedTake,
    PreparedUpdate,
)
from tests.support.pool import make_job, make_node

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
TAKE = PreparedTake(
    lambda: (
        Job.objects.filter(author=Later("author", CharField()), state=Job.State.QUEUED).order_by("-pk"),
        {"state": Job.State.LEASED, "attempts": F("attempts") + 1},
        Job.objects.annotate(
            next_window=NextNumber(Window), size=Subquery(Blob.objects.filter(pk=OuterRef("release")).values("size"))
        ),
    )
)
SINCE = Prepared(
    lambda: (
        Job.objects.filter(queued_at__gt=Later("since", DateTimeField()))
        .order_by("author")
        .values_list("author")
        .annotate(first=Min("queued_at"), jobs=Count("pk"))
    )
)
BOTH = PreparedInserts(PreparedInsert(lambda: Window, numbered=True), ADD)


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


def test_values_and_sums_come_as_tuples_of_pythons_own_types() -> None:
    now = timezone.now()
    for author, age in (("ada", 2), ("ada", 1), ("bob", 3), ("eve", 60)):
        make_job(author=author, queued_at=now - timedelta(hours=age))
    assert SINCE.tuples(since=now - timedelta(days=1)) == [
        ("ada", now - timedelta(hours=2), 2),
        ("bob", now - timedelta(hours=3), 1),
    ]
    assert SINCE.tuples(since=now) == []


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


def test_one_row_is_taken_and_told_as_it_is_then() -> None:
    first, last = (make_job(author="ada", result={"a": [1]}) for _ in range(2))
    with transaction.atomic():
        taken = TAKE.first(author="ada")
    assert taken == last
    last.refresh_from_db()
    fields = [field.attname for field in Job._meta.concrete_fields]
    assert [getattr(taken, name) for name in fields] == [getattr(last, name) for name in fields]
    assert (last.state, last.attempts, vars(taken)["size"]) == (Job.State.LEASED, 1, last.release.size)
    first.refresh_from_db()
    assert first.state == Job.State.QUEUED
    with transaction.atomic():
        assert TAKE.first(author="ada") == first
        assert TAKE.first(author="ada") is None


def test_a_number_that_was_drawn_is_that_of_the_row_and_not_of_the_next() -> None:
    node, job = make_node()[0], make_job(author="ada")
    day = {"node": node, "weekday": 0, "start": "00:00", "end": "00:00"}
    with transaction.atomic():
        taken = TAKE.first(author="ada")
        window = Window(pk=vars(taken)["next_window"], **day)
        BOTH.add(window, Event.of("ada", job, "Both were written."))
    assert Window.objects.get() == window
    assert Event.objects.about(job).get().sentence == "Both were written."
    assert Window.objects.create(**day).pk > window.pk


def test_numbers_and_words_come_as_they_are_stored() -> None:
    jobs = [make_job(author=author) for author in ("a", "b")]
    asked = Job.objects.filter(pk__gte=Later("first", BigIntegerField())).order_by("pk")
    asked = asked.values_list("pk", "author", "expected_seconds", "attempts")
    found = [Prepared(lambda: asked, binary=binary).tuples(first=jobs[0].pk) for binary in (False, True)]
    assert found[0] == found[1] == [(job.pk, job.author, job.expected_seconds, job.attempts) for job in jobs]
