"""Transitions between trust levels of runs, and their events."""

from __future__ import annotations

import pytest

from leaderboard.models import Replay, Run
from leaderboard.rankings import trust
from scheduler.models import Event
from scheduler.transitions import StateError
from tests.support import boards

pytestmark = [pytest.mark.sql, pytest.mark.django_db]
T, E = Run.Trust, trust.TrustEvent


@pytest.fixture
def scored_run() -> Run:
    _, baseline = boards.create_ladder_track()
    return boards.create_scored_run(baseline, trust=T.PROVISIONAL)


def test_trust_transitions_upward_are_applied(scored_run: Run) -> None:
    events = {E.RELY: T.SCORED, E.REPLICATE: T.REPLICATED, E.RECORD: T.RECORD, E.DISPUTE: T.DISPUTED}
    for event, target in events.items():
        trust.apply_trust_event(scored_run, event, actor="site", message=f"Now {target}.")
        assert scored_run.trust == target
    assert [event.sentence for event in Event.objects.about(scored_run)][-1] == "Now disputed."


@pytest.mark.parametrize(
    ("since", "event"),
    [
        (T.PROVISIONAL, E.REPLICATE),
        (T.PROVISIONAL, E.RECORD),
        (T.DISPUTED, E.RELY),
        (T.DISPUTED, E.REPLICATE),
        (T.RECORD, E.RELY),
        (T.SCORED, E.SETTLE),
    ],
)
def test_invalid_trust_transition_is_rejected(scored_run: Run, since: Run.Trust, event: trust.TrustEvent) -> None:
    Run.objects.filter(pk=scored_run.pk).update(trust=since)
    revision = Run.objects.get(pk=scored_run.pk).revision
    with pytest.raises(StateError):
        trust.apply_trust_event(scored_run, event, actor="site", message="Jumped.")
    assert (scored_run.trust, scored_run.revision) == (since, revision)
    assert not Event.objects.about(scored_run).exists()


@pytest.mark.parametrize("since", [T.PROVISIONAL, T.SCORED, T.REPLICATED, T.RECORD])
def test_disputed_run_is_settled_by_maintainer_only(scored_run: Run, since: Run.Trust) -> None:
    Run.objects.filter(pk=scored_run.pk).update(trust=since)
    trust.apply_trust_event(scored_run, trust.TrustEvent.DISPUTE, actor="node:b", message="Disputed: it differs.")
    assert not trust.mark_scored(scored_run)
    trust.settle_dispute(scored_run, "mara")
    assert scored_run.trust == T.SCORED
    with pytest.raises(StateError):
        trust.settle_dispute(scored_run, "mara")


def test_run_that_finished_meanwhile_is_marked_as_scored(scored_run: Run) -> None:
    Replay.objects.create(run=scored_run, end_step=10, state=Replay.State.AGREED)
    scored_run.state = Run.State.SCORING  # as it was read before its score was stored
    assert trust.mark_scored(scored_run)
    assert Run.objects.get(pk=scored_run.pk).trust == T.SCORED
