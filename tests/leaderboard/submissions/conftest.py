"""Entries of a track that approves by policy."""

from __future__ import annotations

from typing import Any

import pytest

from leaderboard.models import ApprovalLimits, Entry, PullRequest, Season, Track
from leaderboard.submissions import policy
from tests.support import scene
from tests.support.graph_jobs import store_graph

HOUR = {"expected_seconds": 3600.0, "is_traced": True, "approval": Track.Approval.ANYONE}


@pytest.fixture
def open_track(track: Track) -> Track:
    """A traced track of an hour that approves anyone's entries."""
    Track.objects.filter(pk=track.pk).update(**HOUR)
    Season.objects.update(caps={}, vocabulary_size=512)
    ApprovalLimits.objects.create(pk=1, author_hours=2, site_hours=3)
    return Track.objects.select_related("season").get(pk=track.pk)


def propose_entry(track: Track, number: int, author: int | None = 1, **fields: Any) -> Entry:
    """Create an entry of a pull request whose smoke test passed; `number` is that of its graph."""
    pull = PullRequest.objects.get_or_create(number=author or 0, defaults={"author_id": author})[0]
    known = {"state": Entry.State.PROPOSED, "sha": f"{Entry.objects.count():040x}", "pull_request": pull}
    entry = scene.create_entry(track, f"Idea {number}", **{**known, **fields})
    graph = store_graph(entry)
    graph.hash = f"{number:064x}"
    graph.save()
    smoke = fields.get("smoke", {"passed": True})
    Entry.objects.filter(pk=entry.pk).update(smoke=smoke, smoke_job=graph.job, bundle=graph.job.release)
    entry.refresh_from_db()
    return entry


def decide(entry: Entry) -> tuple[str, str]:
    policy.decide_entries()
    entry.refresh_from_db()
    return entry.state, entry.obstacle
