"""Whether one card has time for its nights and the ladder: the simulated site, and what `check_night` says."""

from __future__ import annotations

import pytest
from django.utils import timezone

from benchmarks.one_card.simulation import simulate
from leaderboard.models import Track
from leaderboard.schedule.night_checks import check_next_night
from scheduler.models import Node


@pytest.mark.self_test
@pytest.mark.django_db
def test_simulated_card_with_five_moves_starts_every_night() -> None:
    simulated = simulate(9, 5, 1)  # two free nights, an interruption, every way of yielding
    assert (simulated.nights_due, simulated.nights_started) == (7, 7)
    assert simulated.hours_late_at_most < 1


@pytest.mark.parametrize(("seconds", "state"), [(75_600.0, "ok"), (85_000.0, "missing")])
def test_ladder_check_of_one_card_depends_on_its_free_hours(
    track: Track, capable_node: Node, seconds: float, state: str
) -> None:
    track.ladder, track.expected_seconds = {"rungs": [0.5, 1, 2], "seeds": 3}, seconds
    track.save()
    (check,) = (found for found in check_next_night(track, timezone.now()) if found.name == "Time for the ladder")
    assert (check.state, check.fails_night) == (state, False), check.advice
    assert f"{3.5 * 3 * seconds / 3600:.1f} h" in check.advice
