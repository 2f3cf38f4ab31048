"""The forecast of a track's nights and ladder on this site's cards."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from leaderboard import run_jobs, scoring_work
from leaderboard.models import Run, Track
from leaderboard.schedule import ladder
from leaderboard.schedule.forecast import (
    DAYS,
    HOUR,
    NETWORK,
    CardPlan,
    Forecast,
    PlannedRun,
    describe_remedies,
    forecast_card,
    list_moves,
)
from leaderboard.schedule.planned_night import PlannedNight
from scheduler.models import Node

OBSERVED = timedelta(days=28)
"""Age of the oldest nights that say how often `main` moves."""
LEAST_NIGHTS = 7


def count_moves_a_week(track: Track, now: datetime) -> int:
    """Return on how many nights a week `main` has moved lately; every night before a week is over."""
    nights = track.nights.filter(date__gte=(now - OBSERVED).date())
    total = nights.count()
    moved = nights.filter(run__purpose=Run.Purpose.NIGHTLY).count() + nights.filter(is_waiting=True).count()
    return 7 if total < LEAST_NIGHTS else round(7 * moved / total)


def build_card_plan(night: PlannedNight) -> CardPlan:
    """Return what is planned for the first card that fits the night."""
    track, sizes = night.track, night.track.get_checkpoint_sizes()
    hardware = Node.objects.values_list("hardware", flat=True).get(pk=night.trainers[0].node_slot.node or 0)
    network = float(hardware.get("network_bytes_per_second") or NETWORK)
    every = run_jobs.get_checkpoint_seconds(night.run)
    unsent = run_jobs.get_upload_seconds(night.run) or every
    return CardPlan(
        night=build_planned_run(night, track.expected_seconds, track.budget),
        ladder=tuple(list_planned_rungs(night)) if track.ladder else (),
        upload_every=math.ceil(unsent / every) * every if every else track.expected_seconds,
        resume_seconds=sizes.checkpoint / network,
        final_seconds=sizes.final / network,
        first_due=max(((night.due_at or night.now) - night.now).total_seconds(), 0.0),
        pins_baseline=track.season.baseline_id is None,
    )


def build_planned_run(night: PlannedNight, seconds: float, budget: str) -> PlannedRun:
    """Return a run with its scoring time, which is 0 if a node that trains no night may score."""
    trainers = {slot.node_slot.node for slot in night.trainers}
    if any(slot.node_slot.node not in trainers for slot in night.find_fitting(night.scoring)):
        return PlannedRun(seconds, 0.0)
    track, test_bytes = night.track, night.track.season.get_dataset_bytes("test")
    suite = track.suite if budget == track.budget else ()
    work = scoring_work.compute_scoring_work(night.run, suite, test_bytes)
    return PlannedRun(seconds, scoring_work.estimate_scoring_times(track, work)[0])


def list_planned_rungs(night: PlannedNight) -> list[PlannedRun]:
    """Return the ladder's missing and unfinished runs, smallest first."""
    track, rungs = night.track, night.track.rungs()
    if track.season.baseline_id is None:
        missing = [budget for budget in rungs for _ in range(int(track.ladder["seeds"]))]
        missing.remove(track.budget)  # the first night
        unfinished = []
    else:
        missing = ladder.list_missing_rungs(track)
        runs = Run.objects.filter(track=track, entry=track.season.baseline_id, purpose=Run.Purpose.LADDER)
        unfinished = [(run.budget, 1 - run.fraction) for run in runs.filter(state__in=Run.UNFINISHED)]
    left = sorted([*unfinished, *((budget, 1.0) for budget in missing)], key=lambda pair: rungs.get(pair[0], 1.0))
    return [
        build_planned_run(night, track.expected_seconds * rungs.get(budget, 1.0) * share, budget)
        for budget, share in left
    ]


def describe_forecast(night: PlannedNight) -> tuple[bool, str]:
    """Return whether the next 90 days go well, and what they bring."""
    moves, plan, cards = count_moves_a_week(night.track, night.now), build_card_plan(night), len(night.trainers)
    if cards > 1:
        found = forecast_card(CardPlan(**{**vars(plan), "ladder": ()}), list_moves(DAYS, moves))
        hours = sum(run.seconds + run.score_seconds for run in plan.ladder) / HOUR
        text = f"Another card takes the ladder's {hours:,.0f} hours." if plan.ladder else ""
        return True, f"{describe_nights(found, moves)} {text}".strip()
    found = forecast_card(plan, list_moves(DAYS, moves))
    if not plan.ladder:
        return True, describe_nights(found, moves)
    if found.ladder_full_day:
        return True, f"{describe_nights(found, moves)} The ladder is full on day {found.ladder_full_day}."
    remedies = describe_remedies(plan, moves, found)
    return False, f"{describe_nights(found, moves)} The ladder cannot fill on this card alone. It needs {remedies}."


def describe_nights(found: Forecast, moves: int) -> str:
    return (
        f"In {found.days} days, with main moving on {moves} of 7 and two hours a week without the card: "
        f"{found.nights_started} of {found.nights_due} nights start, at most {found.hours_late_at_most:.1f} h late."
    )
