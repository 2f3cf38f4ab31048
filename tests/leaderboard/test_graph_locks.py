"""What nodes, maintainers and authors do to graphs of one season at the same moment never waits in a circle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from leaderboard.models import Entry, Run, Track
from leaderboard.submissions import intake
from scheduler import transitions
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job
from tests.scheduler.test_claims_race import all_at_once
from tests.support.graph_jobs import leave_graph

ENTRIES = 4
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def entries(track: Track, idea: Entry) -> list[Entry]:
    """Entries whose smoke jobs are queued, on a track whose baseline is traced too."""
    Track.objects.update(is_traced=True)
    season = track.season
    fields = {"track": track, "bundle": idea.bundle, "kind": "architecture", "architecture": "smear"}
    made = [Entry.objects.create(title=f"Idea {n}", sha=f"{n}" * 40, **fields) for n in range(1, ENTRIES + 1)]
    main = {**fields, "kind": "main", "title": "main", "architecture": "gpt", "state": "approved"}
    season.baseline = Entry.objects.create(sha="b" * 40, **main)
    season.vocabulary_size, season.caps = 512, {"scoring_flops": 2}
    season.save()
    found = list(Entry.objects.select_related("track__season").filter(pk__in=[entry.pk for entry in made]))
    for entry in found:
        intake.approve_entry(entry, entry.sha, None)
    return found


def finish_trace(job: Job, result: dict[str, Any]) -> None:
    """End a smoke job as its node does, unless it was cancelled."""
    with transaction.atomic():
        if transitions.change_job_state(job, Job.State.DONE, since=[Job.State.QUEUED], actor="site", message="Done."):
            get_job_kind(job).handle_done(job, result)


@pytest.mark.postgres
@pytest.mark.parametrize("attempt", range(3))
def test_concurrent_traces_approvals_and_withdrawals_do_not_deadlock(entries: list[Entry], attempt: int) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL: set DATABASE_URL")
    calls: list[Callable[[], Any]] = []
    for job in Job.objects.filter(kind="smoke").select_related("traced_graph__entry"):
        result = {"passed": True, "sentence": "It traces.", "checks": [], "graph": leave_graph(job)}
        calls.append(lambda job=job, result=result: finish_trace(job, result))  # type: ignore[misc]
    assert len(calls) == ENTRIES + 1
    withdrawn, kept = entries[::2], entries[1::2]
    calls += [lambda entry=entry: intake.withdraw_entry(entry) for entry in withdrawn]  # type: ignore[misc]
    calls += [lambda entry=entry: intake.approve_entry(entry, entry.sha, None) for entry in kept]  # type: ignore[misc]
    all_at_once(calls)
    assert set(Run.objects.filter(entry__in=withdrawn).values_list("state", flat=True)) == {"cancelled"}
    assert set(Run.objects.filter(entry__in=kept).values_list("state", flat=True)) == {"queued"}
