"""Concurrent changes of graphs, entries and runs of one season do not deadlock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction

from leaderboard import runs
from leaderboard.models import Entry, Run, Track
from leaderboard.submissions import intake
from scheduler import transitions
from scheduler.models import Job
from scheduler.transitions import JobEvent, StateError, apply_job_event
from tests.scheduler.test_claims_race import call_concurrently
from tests.support.graph_jobs import attach_graph
from tests.support.waits import wait_until

ENTRIES = 4
pytestmark = [pytest.mark.sql, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _postgresql() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL: set DATABASE_URL")


@pytest.fixture
def traced_entries(track: Track, proposed_entry: Entry) -> list[Entry]:
    """Entries whose smoke jobs are queued, on a track whose baseline is traced too."""
    Track.objects.update(is_traced=True)
    season = track.season
    fields = {"track": track, "bundle": proposed_entry.bundle, "kind": "architecture", "architecture": "smear"}
    created = [Entry.objects.create(title=f"Idea {n}", sha=f"{n}" * 40, **fields) for n in range(1, ENTRIES + 1)]
    main = {**fields, "kind": "main", "title": "main", "architecture": "gpt", "state": "approved"}
    season.baseline = Entry.objects.create(sha="b" * 40, **main)
    season.vocabulary_size, season.caps = 512, {"scoring_flops": 2}
    season.save()
    entries = list(Entry.objects.select_related("track__season").filter(pk__in=[entry.pk for entry in created]))
    for entry in entries:
        intake.approve_entry(entry, entry.sha, None)
    return entries


def finish_trace(job: Job, result: dict[str, Any]) -> None:
    """End a smoke job as its node does, unless it was cancelled."""
    with suppress(StateError), transaction.atomic():
        apply_job_event(job, JobEvent.TAKE, actor="site")
        apply_job_event(job, JobEvent.FINISH, actor="site", result=result)


@pytest.mark.postgres
@pytest.mark.parametrize("attempt", range(3))
def test_concurrent_traces_approvals_and_withdrawals_do_not_deadlock(traced_entries: list[Entry], attempt: int) -> None:
    calls: list[Callable[[], Any]] = []
    for job in Job.objects.filter(kind="smoke").select_related("traced_graph__entry"):
        result = {"passed": True, "sentence": "It traces.", "checks": [], "graph": attach_graph(job)}
        calls.append(lambda job=job, result=result: finish_trace(job, result))  # type: ignore[misc]
    assert len(calls) == ENTRIES + 1
    withdrawn, approved = traced_entries[::2], traced_entries[1::2]
    calls += [lambda entry=entry: intake.withdraw_entry(entry) for entry in withdrawn]  # type: ignore[misc]
    calls += [lambda entry=entry: intake.approve_entry(entry, entry.sha, None) for entry in approved]  # type: ignore[misc]
    call_concurrently(calls)
    assert set(Run.objects.filter(entry__in=withdrawn).values_list("state", flat=True)) == {"cancelled"}
    assert set(Run.objects.filter(entry__in=approved).values_list("state", flat=True)) == {"queued"}


def finish_traces() -> None:
    for job in Job.objects.filter(kind="smoke").select_related("traced_graph__entry"):
        finish_trace(job, {"passed": True, "sentence": "It traces.", "checks": [], "graph": attach_graph(job)})


def call_and_disconnect(call: Callable[[], Any]) -> Any:
    try:
        return call()
    finally:
        connection.close()


def save_impact(entry: Entry) -> None:
    """Change an entry's impact as the admin does, in one transaction with other changes."""
    with transaction.atomic():
        intake.set_impact(entry, 7, "mara")
        Entry.objects.filter(pk=entry.pk).update(title="Another")


def wait_for_blocked_connection() -> None:
    """Return when another connection waits for a lock."""

    def is_blocked() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(cursor.fetchone()[0])

    wait_until(is_blocked)


@pytest.mark.postgres
def test_recheck_while_a_queued_run_is_withdrawn_does_not_deadlock(traced_entries: list[Entry]) -> None:
    finish_traces()
    entry, season = traced_entries[0], traced_entries[0].track.season
    season.caps = {"scoring_flops": 0.5}
    season.save()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            runs.lock_jobs(entry)  # as a withdrawal begins
            recheck = pool.submit(call_and_disconnect, lambda: runs.recheck_queued(season))
            wait_for_blocked_connection()
            intake.withdraw_entry(entry)
        assert recheck.result() == ENTRIES - 1
    states = Run.objects.filter(entry__in=traced_entries).order_by("entry").values_list("state", flat=True)
    assert list(states) == ["cancelled", *["waiting"] * (ENTRIES - 1)]


@pytest.mark.postgres
def test_impact_of_an_entry_that_is_withdrawn_does_not_deadlock(traced_entries: list[Entry]) -> None:
    finish_traces()
    entry = Entry.objects.select_related("track__season").get(pk=traced_entries[0].pk)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            runs.lock_jobs(entry)
            change = pool.submit(call_and_disconnect, lambda: save_impact(traced_entries[0]))
            wait_for_blocked_connection()
            intake.withdraw_entry(entry)
        change.result()
    entry.refresh_from_db()
    assert (entry.state, entry.impact, entry.title) == ("withdrawn", 7, "Another")


@pytest.mark.postgres
@pytest.mark.parametrize("attempt", range(3))
def test_concurrent_approvals_and_cancelled_traces_do_not_deadlock(traced_entries: list[Entry], attempt: int) -> None:
    jobs = list(Job.objects.filter(kind="smoke", traced_graph__entry__in=traced_entries))
    calls: list[Callable[[], Any]] = [
        lambda job=job: transitions.cancel_job(job, "mara", "Not now.")
        for job in jobs  # type: ignore[misc]
    ]
    for entry in [*traced_entries, *traced_entries]:
        calls.append(lambda entry=entry: intake.approve_entry(entry, entry.sha, None))  # type: ignore[misc]
    call_concurrently(calls)
    assert set(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("state", flat=True)) == {"cancelled"}
