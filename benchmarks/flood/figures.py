"""What a flood came to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from benchmarks.flood.authors import DAY, ENOUGH, Idea
from benchmarks.flood.simulation import Flood
from leaderboard.models import Confirmation, Entry, PullRequest, Run, Standing
from scheduler.models import Event, Lease

TARGET = "playground-h100"
VERDICTS = ("policy.smoke", "policy.caps", "policy.duplicate", "policy.behind")
"""Decisions with which an author gets a verdict."""


def summarize(flood: Flood) -> dict[str, Any]:
    ideas, hours = flood.ideas, list_verdict_hours(flood)
    found = {ideas[number].number for number in list_better(TARGET) if ideas[number].is_gain}
    spent = sum_gpu_hours()
    judged = Run.objects.filter(purpose=Run.Purpose.ENTRY, state__in=(Run.State.FINISHED, Run.State.STOPPED))
    judged = judged.filter(budget__in=[track.budget for track in flood.tracks.values()]).with_entry()
    able = [
        run for run in judged.select_related("entry__pull_request") if flood.find_idea(run.entry).multiplier >= ENOUGH
    ]
    disputed = Confirmation.objects.filter(outcome=Confirmation.Outcome.WORSE).count()
    minutes = {
        kind: max((n for (name, _), n in flood.load.items() if name == kind), default=0)
        for kind in ("requests", "queries")
    }
    return {
        "decisions_a_day": round((len(flood.person) + disputed) / flood.days, 2),
        "verdict_hours_median": round(statistics.median(hours), 2),
        "verdict_hours_p95": round(sorted(hours)[int(0.95 * (len(hours) - 1))], 2),
        "gpu_hours_a_gain": round(spent / len(found), 1) if found else None,
        "gains": sum(idea.is_gain for idea in ideas.values()),
        "gains_found": len(found),
        "false_records": count_false_records(flood),
        "wrong_stops": sum(run.state == Run.State.STOPPED for run in able),
        "runs_able": len(able),
        "gpu_hours": round(spent, 1),
        "pull_requests": len(ideas) - 1,
        "runs": Run.objects.filter(purpose=Run.Purpose.ENTRY, started_at__isnull=False).count(),
        "stopped": Run.objects.filter(state=Run.State.STOPPED).count(),
        "without_verdict": count_unanswered(flood),
        "board_age_seconds_most": round(max(flood.ages, default=0.0), 2),
        "requests_a_second_peak": round(minutes["requests"] / 60, 2),
        "queries_a_second_peak": round(minutes["queries"] / 60, 1),
        "tasks": dict(flood.tasks),
        "obstacles": count_words(Entry.objects.filter(state=Entry.State.PROPOSED).values_list("obstacle", flat=True)),
    }  # fmt: skip


def count_words(words: Iterable[str]) -> dict[str, int]:
    found = list(words)
    return {word: found.count(word) for word in sorted({*found})}


def list_better(slug: str) -> list[int]:
    """Return the pull requests that are above 1 with confidence on a track."""
    better = Standing.objects.filter(table__track__slug=slug, table__axis="flops", multiplier_low__gt=1)
    numbers = better.filter(is_baseline=False).values_list("entry__pull_request__number", flat=True)
    return [number for number in numbers if number is not None]


def sum_gpu_hours() -> float:
    leases = Lease.objects.filter(gpus__gt=0, ended_at__isnull=False).values_list("started_at", "ended_at")
    return sum((ended - started).total_seconds() for started, ended in leases) / 3600


def list_first_verdicts() -> dict[int, datetime]:
    """Return when each pull request got its first verdict, by number."""
    entries = dict(Entry.objects.exclude(pull_request=None).values_list("pk", "pull_request__number"))
    found: list[tuple[int, datetime]] = []
    events = Event.objects.filter(target_kind="entry")
    failed = events.filter(sentence__startswith="Smoke test failed")
    rejected = events.filter(sentence__startswith="Entry rejected")
    for rows in (events.filter(kind__in=VERDICTS), failed, rejected):
        found += [(entries[entry], at) for entry, at in rows.values_list("target_id", "at") if entry in entries]
    ended = Run.objects.filter(entry__in=entries, finished_at__isnull=False)
    found += [(entries[entry], at) for entry, at in ended.values_list("entry", "finished_at")]
    for pull in PullRequest.objects.filter(entry=None):
        if pull.problems and pull.seen_at:
            found.append((pull.number, pull.seen_at))
    first: dict[int, datetime] = {}
    for number, at in found:
        first[number] = min(at, first.get(number, at))
    return first


def list_verdict_hours(flood: Flood) -> list[float]:
    """Return the hours to the first verdict; of a pull request without one those until the end of the flood."""
    first, end, zero = list_first_verdicts(), flood.days * DAY, flood.clock.to_datetime(0)
    ends = {number: (at - zero).total_seconds() for number, at in first.items()}
    return [(ends.get(idea.number, end) - idea.at) / 3600 for idea in flood.ideas.values() if idea.number]


def count_unanswered(flood: Flood) -> int:
    return len(flood.ideas) - 1 - len(list_first_verdicts())


def count_false_records(flood: Flood) -> int:
    """Return how many records are no better than the baseline or the record before, or read later tokens."""
    count = 0
    for slug in flood.tracks:
        best = 1.0
        records = Confirmation.objects.filter(outcome=Confirmation.Outcome.RECORD, entry__track__slug=slug)
        for confirmation in records.select_related("entry__pull_request").order_by("decided_at"):
            idea: Idea = flood.find_idea(confirmation.entry)
            count += idea.multiplier <= best or idea.kind == "cheat"
            best = max(best, idea.multiplier)
    return count
