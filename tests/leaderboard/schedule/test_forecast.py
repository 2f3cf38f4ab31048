"""The forecast of nights and ladder: against the site's own schedule, and what `check_night` says."""

from __future__ import annotations

import pytest
from django.utils import timezone

from benchmarks.one_card.simulation import simulate
from dailytrain import schedule
from leaderboard.models import Night, Track
from leaderboard.schedule import site_forecast
from leaderboard.schedule.forecast import (
    HOUR,
    CardPlan,
    PlannedRun,
    describe_remedies,
    draw_interruptions,
    forecast_card,
    list_moves,
)
from leaderboard.schedule.night_checks import check_next_night
from leaderboard.schedule.track_templates import TEMPLATES, create_track
from scheduler.models import Node
from trainer import protocol

NIGHT = TEMPLATES["night-h100"]["expected_seconds"]
FULL_SCORE, TEXT_SCORE = 2985.5, 967.5
PARTS = [1 / 8] * 3 + [1 / 4] * 3 + [1 / 2] * 3 + [1] * 2 + [2] * 3
RUNGS = tuple(PlannedRun(NIGHT * part, FULL_SCORE if part == 1 else TEXT_SCORE) for part in PARTS)
PLAN = CardPlan(PlannedRun(NIGHT, FULL_SCORE), RUNGS, 1800.0, 139.0, 55.0, first_due=20 * HOUR, pins_baseline=True)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_forecast_of_five_moves_starts_each_night_within_an_hour(seed: int) -> None:
    found = forecast_card(PLAN, list_moves(90, 5), away=list(draw_interruptions(90, seed)))
    assert (found.nights_due, found.nights_started) == (65, 65)
    assert found.hours_late_at_most < 1
    assert found.ladder_full_day is not None
    assert found.ladder_full_day <= 45
    assert found.hours_lost < 13 * 0.5


def test_forecast_of_seven_moves_starts_each_night_and_names_remedies() -> None:
    found = forecast_card(PLAN, list_moves(90, 7))
    assert (found.nights_due, found.nights_started, found.ladder_full_day) == (90, 90, None)
    remedies = describe_remedies(PLAN, 7, found)
    assert remedies.startswith("a second card for 1")
    assert "a night a week for the ladder (full on day 5" in remedies
    assert "a ladder without its longest rung (full on day 7" in remedies


def test_forecast_of_night_that_leaves_no_time_is_late() -> None:
    plan = CardPlan(PlannedRun(23.25 * HOUR, FULL_SCORE), (), 9 * HOUR, 139.0, 55.0, first_due=20 * HOUR)
    assert forecast_card(plan, list_moves(90, 7)).hours_late_at_most > 5


@pytest.mark.self_test
@pytest.mark.django_db
def test_forecast_agrees_with_the_sites_own_schedule_and_leases() -> None:
    days = 9  # two free nights, an interruption, every way of yielding
    simulated = simulate(days, 5, 1)
    found = forecast_card(PLAN, list_moves(days, 5), days, list(draw_interruptions(days, 1)))
    assert (simulated.nights_due, simulated.nights_started) == (found.nights_due, found.nights_started) == (7, 7)
    assert simulated.hours_late_at_most == pytest.approx(found.hours_late_at_most, abs=0.1)
    assert simulated.hours_lost == pytest.approx(found.hours_lost, abs=0.1)


@pytest.mark.parametrize(
    ("moves", "text"),
    [(7, "cannot fill on this card alone. It needs a second card for"), (5, "The ladder is full on day")],
)
def test_night_check_prints_the_forecast(track: Track, node: Node, moves: int, text: str) -> None:
    schedule.install()
    night_track = create_track("night-h100", track.season)
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85 * 10**9}
    hardware = protocol.Hardware(
        hostname="card",
        platform="Linux",
        python="3.11",
        cpus=32,
        memory_bytes=2**38,
        disk_free_bytes=2**41,
        gpus=(gpu["name"],),
        gpu_details=(gpu,),
        sandboxes=("bubblewrap",),
    )
    Node.objects.filter(pk=node.pk).update(hardware=hardware.model_dump(mode="json"), labels=["1xh100"])
    now = timezone.now()
    for day in range(14):
        is_waiting = day % 7 < moves
        Night.objects.create(
            track=night_track, date=(now - day * site_forecast.OBSERVED / 28).date(), is_waiting=is_waiting
        )
    (check,) = (check for check in check_next_night(night_track, now) if check.name == "Next 90 days")
    assert text in check.advice, check.advice
    assert f"main moving on {moves} of 7" in check.advice
    assert check.fails_night is False
