"""Transitions between trust levels of runs, and their events."""

from __future__ import annotations

from itertools import pairwise

import pytest

from leaderboard.models import Replay, Run
from leaderboard.rankings import trust
from scheduler.models import Event
from tests.support import boards

pytestmark = [pytest.mark.sql, pytest.mark.django_db]
T = Run.Trust


@pytest.fixture
def scored_run() -> Run:
    _, baseline = boards.create_ladder_track()
    return boards.create_scored_run(baseline, trust=T.PROVISIONAL)


def test_trust_transitions_upward_are_applied(scored_run: Run) -> None:
    levels = [T.PROVISIONAL, T.SCORED, T.REPLICATED, T.RECORD, T.REPLICATED]
    for current, target in pairwise(levels):
        assert scored_run.trust == current
        assert trust.transition_trust(scored_run, target, actor="site", sentence=f"Now {target}.")
    assert [event.sentence for event in Event.objects.about(scored_run)][-1] == "Now replicated."


@pytest.mark.parametrize(
    ("since", "target"),
    [
        (T.PROVISIONAL, T.REPLICATED),
        (T.PROVISIONAL, T.RECORD),
        (T.DISPUTED, T.SCORED),
        (T.DISPUTED, T.REPLICATED),
        (T.RECORD, T.SCORED),
        (T.SCORED, T.SCORED),
    ],
)
def test_invalid_trust_transition_is_rejected(scored_run: Run, since: Run.Trust, target: Run.Trust) -> None:
    Run.objects.filter(pk=scored_run.pk).update(trust=since)
    revision = Run.objects.get(pk=scored_run.pk).revision
    assert not trust.transition_trust(scored_run, target, actor="site", sentence="Jumped.")
    assert (scored_run.trust, scored_run.revision) == (since, revision)
    assert not Event.objects.about(scored_run).exists()


@pytest.mark.parametrize("since", [T.PROVISIONAL, T.SCORED, T.REPLICATED, T.RECORD])
def test_disputed_run_is_settled_by_maintainer_only(scored_run: Run, since: Run.Trust) -> None:
    Run.objects.filter(pk=scored_run.pk).update(trust=since)
    assert trust.transition_trust(scored_run, T.DISPUTED, actor="node:b", sentence="Disputed: it differs.")
    assert not trust.mark_scored(scored_run)
    assert trust.settle_dispute(scored_run, "mara")
    assert scored_run.trust == T.SCORED
    assert not trust.settle_dispute(scored_run, "mara")


def test_trust_transition_increases_revision(scored_run: Run) -> None:
    revision = scored_run.revision
    trust.transition_trust(scored_run, T.SCORED, actor="site", sentence="It counts.")
    assert scored_run.revision == revision + 1


def test_run_that_finished_meanwhile_is_marked_as_scored(scored_run: Run) -> None:
    Replay.objects.create(run=scored_run, end_step=10, state=Replay.State.AGREED)
    scored_run.state = Run.State.SCORING  # as it was read before its score was stored
    assert trust.mark_scored(scored_run)
    assert Run.objects.get(pk=scored_run.pk).trust == T.SCORED
