"""The status of an entry for its pull request's comment and check: one line, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from leaderboard.formatting import share
from leaderboard.models import Entry, Run, Standing, StandingsTable, Track
from leaderboard.rankings import confirmations, explanations
from leaderboard.rankings.standings_store import refresh_standings
from leaderboard.schedule.start_estimates import estimate_starts
from leaderboard.submissions import smoke_tests

Conclusion = Literal["success", "failure", "neutral", "cancelled", "action_required"]
PROGRESS_STEPS = 10  # in which the progress of a training run is reported


@dataclass(frozen=True)
class EntryStatus:
    title: str  # of the check
    line: str
    todo: str = ""  # what to do next, and who
    is_started: bool = False
    conclusion: Conclusion | None = None  # of the check


def get_entry_status(entry: Entry, now: datetime) -> EntryStatus:
    """Return the status of an entry. It should have its `track__season` and `smoke_job`."""
    if entry.state == Entry.State.REJECTED:
        todo = "A maintainer has written why. A push is reviewed again."
        return EntryStatus("Not approved", f"Not approved: {entry.reason}", todo, conclusion="failure")
    if entry.state == Entry.State.WITHDRAWN:
        return EntryStatus("Withdrawn", f"Withdrawn: {entry.reason}", conclusion="cancelled")
    runs = list(entry.runs.select_related("track", "season", "job", "entry").order_by("pk"))
    if any(has_result(run) for run in runs):
        return get_finished_status(entry, runs)
    is_active = any(run.state in (Run.State.QUEUED, *Run.LIVE) for run in runs)
    if not is_active and (state := get_smoke_status(entry)):
        return state
    if entry.state != Entry.State.APPROVED:
        return get_approval_status(entry, now)
    return get_runs_status(entry, runs, now)


def has_result(run: Run) -> bool:
    return run.state == Run.State.FINISHED and run.bits_per_byte is not None and run.budget == run.track.budget


def get_smoke_status(entry: Entry) -> EntryStatus | None:
    if smoke_tests.is_running(entry):
        message = f"The smoke test of commit `{entry.sha[:8]}` is under way: a few minutes on a CPU, before any GPU."
        return EntryStatus("Smoke test", message, "nothing, its result comes by itself.", is_started=True)
    if entry.smoke.get("passed") is False:
        file, line, code = (entry.smoke.get(name) for name in ("file", "line", "code"))
        where = f" It is in `{file}`, line {line}: `{str(code).replace('`', '')}`." if file and line else ""
        hint = f"`dailytrain smoke {entry.architecture}` finds the same on your own machine."
        todo = f"Push a commit that puts it right. {hint}"
        message = f"The smoke test failed: {entry.smoke_sentence}{where}"
        return EntryStatus("Smoke test failed", message, todo, conclusion="failure")
    return None


def get_approval_status(entry: Entry, now: datetime) -> EntryStatus:
    smoke = f" {entry.smoke_sentence}" if entry.smoke_sentence else ""
    message = f"Commit `{entry.sha[:8]}` waits for a maintainer to read and approve it.{smoke}"
    todo = f"A maintainer reads the diff, then writes `/approve {entry.sha[:8]}` here or approves it in the admin."
    if entry.kind in smoke_tests.SMOKE_KINDS and not entry.smoke:
        todo += " Before that, `/train smoke` by a maintainer starts the smoke test."
    is_behind = entry.obstacle == Entry.Obstacle.BEHIND
    if entry.track.approval != Track.Approval.MAINTAINER and (is_behind or not entry.needs_person):
        obstacle = entry.get_obstacle_display() or "Its track's policy decides within a minute."
        judged = {Entry.Obstacle.DUPLICATE: entry.duplicate_of, Entry.Obstacle.BEHIND: entry.waits_for}
        twin = judged.get(Entry.Obstacle(entry.obstacle)) if entry.obstacle else None
        verdict = f" Its verdict: {get_entry_status(twin, now).line}" if twin else ""
        message = f"Commit `{entry.sha[:8]}` is not approved yet. {obstacle}{smoke}{verdict}"
        if not is_behind:
            todo = "" if entry.obstacle else "nothing, the decision comes by itself."
    return EntryStatus("Waits for approval", message, todo)


def get_runs_status(entry: Entry, runs: Sequence[Run], now: datetime) -> EntryStatus:
    if not runs:
        return EntryStatus("Approved", f"Commit `{entry.sha[:8]}` is approved.", "nothing, its run comes by itself.")
    for states, get_status in (
        ([Run.State.TRAINING, Run.State.PAUSED], get_training_status),
        ([Run.State.SCORING], get_scoring_status),
        ([Run.State.QUEUED, Run.State.WAITING], get_queued_status),
    ):
        if matching_runs := [run for run in runs if run.state in states]:
            return get_status(matching_runs[-1], now)
    return get_ended_status(runs[-1])


def get_queued_status(run: Run, now: datetime) -> EntryStatus:
    start = estimate_starts([run], now)[0]
    place = f", number {start.position} in the queue" if start.position else ""
    when = f" It starts at about {format_clock(start.begins_at, now)}." if start.begins_at else ""
    why = "" if start.begins_at else f" {start.reason}".rstrip()
    message = f"Run {run.pk} waits for a node{place}.{when}{why}"
    return EntryStatus("Waits for a node", message, "nothing, it starts by itself.")


def get_training_status(run: Run, now: datetime) -> EntryStatus:
    if run.state == Run.State.PAUSED:
        todo = "nothing, it continues from its last checkpoint by itself."
        return EntryStatus("Delayed", f"Run {run.pk} lost its node. {run.reason}", todo, is_started=True)
    steps = int(run.fraction * PROGRESS_STEPS)
    done = f", {steps * 100 // PROGRESS_STEPS} % of the way" if steps else ""
    message = f"Run {run.pk} trains on {run.node_name} since {format_clock(run.started_at, now)}{done}."
    todo = "nothing, the verdict comes by itself. The curve is live on the run's page."
    return EntryStatus(f"Training{done}", message, todo, is_started=True)


def get_scoring_status(run: Run, now: datetime) -> EntryStatus:
    message = f"Run {run.pk} is trained and is being scored on text that the model has not seen."
    return EntryStatus("Being scored", message, "nothing, the verdict comes by itself.", is_started=True)


def get_ended_status(run: Run) -> EntryStatus:
    """Return the status of an entry whose last run is over and not on the board."""
    if run.state == Run.State.FINISHED and run.bits_per_byte is None:
        return EntryStatus("Arrived", f"Run {run.pk} is done.", "its page has what it left.", conclusion="success")
    if run.state == Run.State.FINISHED:
        result = f"Run {run.pk} had {share(run.part)} and reached {run.bits_per_byte:.4f} bits per byte"
        todo = "A maintainer's `/rerun` gives it the whole budget."
        return EntryStatus("Arrived", f"{result}; the board compares whole budgets only.", todo, conclusion="success")
    if run.state == Run.State.CANCELLED:
        message = f"Run {run.pk} was cancelled: {run.reason}"
        return EntryStatus("Cancelled", message, "`/rerun` starts another.", conclusion="cancelled")
    if run.state == Run.State.STOPPED:
        message = f"Run {run.pk} was stopped {run.describe_look()}"
        todo = "It has no chance to end above the baseline by 2 %. A maintainer may let it go on, on the run's page."
        return EntryStatus("Stopped early", message, todo, conclusion="neutral")
    message = f"Run {run.pk} failed: {run.reason}"
    if run.cause == "infrastructure":
        return EntryStatus("Failed on our side", message, "`/rerun` lets it go on.", conclusion="neutral")
    todo = "Push a commit that puts it right: it is a new entry."
    return EntryStatus("Failed", message, todo, conclusion="failure")


@dataclass(frozen=True)
class Comparison:
    """An entry's standing, and that of the record holder if it is another entry."""

    row: Standing
    standings: StandingsTable
    record: Standing | None


def compare_entry(entry: Entry) -> Comparison | None:
    """Return the entry's comparison on its track; None while it has no standing."""
    table = refresh_standings(entry.track)
    row = table.get_row(entry.pk)
    if row is None:
        return None
    holder = confirmations.find_record_holder(entry.track)
    return Comparison(row, table, table.get_row(holder) if holder is not None and holder != entry.pk else None)


def get_finished_status(entry: Entry, runs: Sequence[Run]) -> EntryStatus:
    comparison = compare_entry(entry)
    if comparison is None:  # of another season
        last = [run for run in runs if has_result(run)][-1]
        line = f"Run {last.pk} reached {last.bits_per_byte:.4f} bits per byte, in {last.season}."
        return EntryStatus("Arrived", line, conclusion="success")
    more = sum(not run.is_over for run in runs)
    also = f" {more} more run{'' if more == 1 else 's'} of it {'is' if more == 1 else 'are'} under way." if more else ""
    todo = f"{explanations.suggest_next_step(comparison.row, comparison.standings)}{also}".strip()
    line = explanations.describe_standing(comparison.row, comparison.standings)
    return EntryStatus(format_multiplier(comparison), line, todo or "nothing, it has arrived.", conclusion="success")


def format_multiplier(found: Comparison) -> str:
    estimate = found.row.estimate
    if estimate is None or estimate.cm is None:
        return f"{found.row.bits_per_byte:.4f} bits per byte"
    return f"Multiplier {explanations.format_multiplier(estimate)} {explanations.format_interval(estimate)}".strip()


def format_clock(at: datetime | None, now: datetime) -> str:
    """Return "20:10 UTC", or "22 Nov, 20:10 UTC" on another day."""
    if at is None:
        return "a moment ago"
    day = "" if at.date() == now.date() else f"{at:%-d %b}, "
    return f"{day}{at:%H:%M} UTC"
