"""Which levels of trust lead where, and that each change is said."""

from __future__ import annotations

from itertools import pairwise

import pytest

from leaderboard.models import Run
from leaderboard.rankings import trust
from scheduler.models import Event
from tests.support import boards

pytestmark = pytest.mark.django_db
T = Run.Trust


@pytest.fixture
def judged() -> Run:
    _, baseline = boards.small()
    return boards.judged(baseline, trust=T.PROVISIONAL)


def test_the_way_up(judged: Run) -> None:
    way = [T.PROVISIONAL, T.SCORED, T.REPLICATED, T.RECORD, T.REPLICATED]
    for before, to in pairwise(way):
        assert judged.trust == before
        assert trust.transition_trust(judged, to, actor="site", sentence=f"Now {to}.")
    assert [event.sentence for event in Event.objects.about(judged)][-1] == "Now replicated."


@pytest.mark.parametrize(
    ("since", "to"),
    [
        (T.PROVISIONAL, T.REPLICATED),
        (T.PROVISIONAL, T.RECORD),
        (T.DISPUTED, T.SCORED),
        (T.DISPUTED, T.REPLICATED),
        (T.RECORD, T.SCORED),
        (T.SCORED, T.SCORED),
    ],
)
def test_there_is_no_other(judged: Run, since: Run.Trust, to: Run.Trust) -> None:
    Run.objects.filter(pk=judged.pk).update(trust=since)
    revision = Run.objects.get(pk=judged.pk).revision
    assert not trust.transition_trust(judged, to, actor="site", sentence="Jumped.")
    assert (judged.trust, judged.revision) == (since, revision)
    assert not Event.objects.about(judged).exists()


@pytest.mark.parametrize("since", [T.PROVISIONAL, T.SCORED, T.REPLICATED, T.RECORD])
def test_anything_can_be_disputed_and_only_a_maintainer_settles_it(judged: Run, since: Run.Trust) -> None:
    Run.objects.filter(pk=judged.pk).update(trust=since)
    assert trust.transition_trust(judged, T.DISPUTED, actor="node:b", sentence="Disputed: it differs.")
    assert not trust.mark_scored(judged)
    assert trust.settle_dispute(judged, "mara")
    assert judged.trust == T.SCORED
    assert not trust.settle_dispute(judged, "mara")


def test_a_change_makes_a_new_page(judged: Run) -> None:
    before = judged.revision
    trust.transition_trust(judged, T.SCORED, actor="site", sentence="It counts.")
    assert judged.revision == before + 1
