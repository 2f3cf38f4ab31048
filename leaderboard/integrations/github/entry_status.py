"""Where an entry stands, in the words of its pull request: one line, and what to do next.

Read off the rows each time. The comment and the check say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from leaderboard.formatting import share
from leaderboard.job_handlers import smoke_tests
from leaderboard.models import Entry, Run, Standing, StandingsTable
from leaderboard.rankings import confirmations, explanations
from leaderboard.rankings.standings_store import refresh_standings
from leaderboard.schedule.start_estimates import estimate_starts

Conclusion = Literal["success", "failure", "neutral", "cancelled", "action_required"]
PROGRESS_STEPS = 10
"""Steps in which a running training is told."""


@dataclass(frozen=True)
class EntryStatus:
    """What is said of an entry."""

    title: str
    """A few words: of the check."""
    line: str
    """One sentence."""
    todo: str = ""
    """What to do next, and who."""
    begun: bool = False
    conclusion: Conclusion | None = None
    """Of the check; None while there is none."""


def get_entry_status(entry: Entry, now: datetime) -> EntryStatus:
    """Return where an entry stands. It should have its track (with season) and smoke job."""
    if entry.state == Entry.State.REJECTED:
        return EntryStatus(
            "Not approved",
            f"Not approved: {entry.reason}",
            "A maintainer has written why. A push is looked at anew.",
            conclusion="failure",
        )
    if entry.state == Entry.State.WITHDRAWN:
        return EntryStatus("Withdrawn", f"Withdrawn: {entry.reason}", conclusion="cancelled")
    runs = list(entry.runs.select_related("track", "season", "job", "entry").order_by("pk"))
    if any(has_result(run) for run in runs):
        return get_finished_status(entry, runs)
    on_its_way = any(run.state in (Run.State.QUEUED, *Run.LIVE) for run in runs)
    if not on_its_way and (state := get_smoke_status(entry)):
        return state
    if entry.state != Entry.State.APPROVED:
        return get_approval_status(entry)
    return get_runs_status(entry, runs, now)


def has_result(run: Run) -> bool:
    """Whether the run is on the board."""
    return run.state == Run.State.FINISHED and run.bits_per_byte is not None and run.budget == run.track.budget


# --- before anything trains ------------------------------------------------------------------------------------------


def get_smoke_status(entry: Entry) -> EntryStatus | None:
    """Return what a smoke run has to say; None where it is in nobody's way."""
    if smoke_tests.is_running(entry):
        return EntryStatus(
            "Smoke run",
            f"The smoke run of commit `{entry.sha[:8]}` is under way: a few minutes on a CPU, before any GPU.",
            "nothing, its result comes by itself.",
            begun=True,
        )
    if entry.smoke.get("passed") is False:
        return EntryStatus(
            "Smoke run failed",
            f"The smoke run failed: {entry.smoke_sentence}{describe_location(entry)}",
            "Push a commit that puts it right. "
            f"`dailytrain smoke {entry.architecture}` finds the same on your own machine.",
            conclusion="failure",
        )
    return None


def describe_location(entry: Entry) -> str:
    """Return where it failed, as far as anybody can say."""
    file, line, code = (entry.smoke.get(name) for name in ("file", "line", "code"))
    return f" It is in `{file}`, line {line}: `{str(code).replace('`', '')}`." if file and line else ""


def get_approval_status(entry: Entry) -> EntryStatus:
    smoke = f" {entry.smoke_sentence}" if entry.smoke_sentence else ""
    first = " Before that, `/train smoke` by a maintainer starts the smoke run."
    unsmoked = entry.kind in smoke_tests.SMOKE_KINDS and not entry.smoke
    return EntryStatus(
        "Waits for approval",
        f"Commit `{entry.sha[:8]}` waits for a maintainer to read and approve it.{smoke}",
        f"A maintainer reads the diff, then writes `/approve {entry.sha[:8]}` here or approves it in the admin."
        f"{first if unsmoked else ''}",
    )


# --- the runs --------------------------------------------------------------------------------------------------------


def get_runs_status(entry: Entry, runs: Sequence[Run], now: datetime) -> EntryStatus:
    """Return the state of an approved entry that has no verdict yet."""
    if not runs:
        return EntryStatus("Approved", f"Commit `{entry.sha[:8]}` is approved.", "nothing, its run comes by itself.")
    for state, say in (
        ([Run.State.TRAINING, Run.State.PAUSED], get_training_status),
        ([Run.State.SCORING], get_scoring_status),
        ([Run.State.QUEUED, Run.State.WAITING], get_queued_status),
    ):
        if mine := [run for run in runs if run.state in state]:
            return say(mine[-1], now)
    return get_ended_status(runs[-1])


def get_queued_status(run: Run, now: datetime) -> EntryStatus:
    leaves = estimate_starts([run], now)[0]
    place = f", number {leaves.position} in the queue" if leaves.position else ""
    when = f" It leaves at about {format_clock(leaves.leaves_at, now)}." if leaves.leaves_at else ""
    why = "" if leaves.leaves_at else f" {leaves.reason}".rstrip()
    return EntryStatus(
        "Waits for a node", f"Run {run.pk} waits for a node{place}.{when}{why}", "nothing, it leaves by itself."
    )


def get_training_status(run: Run, now: datetime) -> EntryStatus:
    if run.state == Run.State.PAUSED:
        return EntryStatus(
            "Delayed",
            f"Run {run.pk} lost its node. {run.reason}",
            "nothing, it goes on from its last checkpoint by itself.",
            begun=True,
        )
    done = (
        f", {int(run.fraction * PROGRESS_STEPS) * 100 // PROGRESS_STEPS} % of the way"
        if run.fraction * PROGRESS_STEPS >= 1
        else ""
    )
    return EntryStatus(
        f"Training{done}",
        f"Run {run.pk} trains on {run.node_name} since {format_clock(run.started_at, now)}{done}.",
        "nothing, the verdict comes by itself. The curve is live on the run's page.",
        begun=True,
    )


def get_scoring_status(run: Run, now: datetime) -> EntryStatus:
    return EntryStatus(
        "Being scored",
        f"Run {run.pk} is trained and is being scored on text that the model has not seen.",
        "nothing, the verdict comes by itself.",
        begun=True,
    )


def get_ended_status(run: Run) -> EntryStatus:
    """Return the state of an entry whose last run is over, without a place on the board."""
    if run.state == Run.State.FINISHED and run.bits_per_byte is None:
        return EntryStatus("Arrived", f"Run {run.pk} is done.", "its page has what it left.", conclusion="success")
    if run.state == Run.State.FINISHED:
        return EntryStatus(
            "Arrived",
            f"Run {run.pk} had {share(run.part)} and reached {run.bits_per_byte:.4f} bits per byte; "
            "the board compares whole budgets only.",
            "A maintainer's `/rerun` gives it the whole budget.",
            conclusion="success",
        )
    if run.state == Run.State.CANCELLED:
        return EntryStatus(
            "Cancelled", f"Run {run.pk} was cancelled: {run.reason}", "`/rerun` starts another.", conclusion="cancelled"
        )
    if run.cause == "infrastructure":
        return EntryStatus(
            "Failed on our side", f"Run {run.pk} failed: {run.reason}", "`/rerun` lets it go on.", conclusion="neutral"
        )
    return EntryStatus(
        "Failed",
        f"Run {run.pk} failed: {run.reason}",
        "Push a commit that puts it right: it is a new entry.",
        conclusion="failure",
    )


# --- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """An entry's multiplier, as the board has it."""

    row: Standing
    standings: StandingsTable
    record: Standing | None
    """Who holds the record, if somebody else does."""


def compare_entry(entry: Entry) -> Comparison | None:
    """Return where an entry stands on its track; None while none of its runs is judged."""
    table = refresh_standings(entry.track)
    row = table.get_row(entry.pk)
    if row is None:
        return None
    holder = confirmations.find_record_holder(entry.track)
    return Comparison(row, table, table.get_row(holder) if holder is not None and holder != entry.pk else None)


def get_finished_status(entry: Entry, runs: Sequence[Run]) -> EntryStatus:
    found = compare_entry(entry)
    if found is None:  # of another season
        last = [run for run in runs if has_result(run)][-1]
        line = f"Run {last.pk} reached {last.bits_per_byte:.4f} bits per byte, in {last.season}."
        return EntryStatus("Arrived", line, conclusion="success")
    more = sum(not run.is_over for run in runs)
    also = f" {more} more run{'' if more == 1 else 's'} of it {'is' if more == 1 else 'are'} under way." if more else ""
    todo = f"{explanations.suggest_next_step(found.row, found.standings)}{also}".strip()
    line = explanations.describe_standing(found.row, found.standings)
    return EntryStatus(format_multiplier(found), line, todo or "nothing, it has arrived.", conclusion="success")


def format_multiplier(found: Comparison) -> str:
    """1.031 ± 2.2 %"""
    estimate = found.row.estimate
    if estimate is None or estimate.cm is None:
        return f"{found.row.bits_per_byte:.4f} bits per byte"
    return f"Multiplier {explanations.format_multiplier(estimate)} {explanations.format_interval(estimate)}".strip()


def format_clock(at: datetime | None, now: datetime) -> str:
    """20:10 UTC, or 22 Nov, 20:10 UTC where that is not today."""
    if at is None:
        return "a moment ago"
    day = "" if at.date() == now.date() else f"{at:%-d %b}, "
    return f"{day}{at:%H:%M} UTC"
