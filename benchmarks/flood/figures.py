"""What a flood came to."""

from __future__ import annotations

import statistics
from datetime import datetime
from itertools import chain
from typing import Any

from django.db.models import Q

from benchmarks.flood.authors import DAY, ENOUGH
from benchmarks.flood.simulation import TARGET, Flood
from leaderboard.models import Confirmation, Entry, PullRequest, Run, Standing
from scheduler.models import Event, Lease

VERDICTS = Q(kind__in=[f"policy.{word}" for word in ("smoke", "caps", "duplicate", "behind")])
VERDICTS |= Q(sentence__startswith="Smoke test failed") | Q(sentence__startswith="Entry rejected")
"""Events with which an author gets a verdict before a run."""


def summarize(flood: Flood) -> dict[str, Any]:
    hours, found, spent = list_verdict_hours(flood), count_found(flood), sum_gpu_hours()
    runs = Run.objects.filter(purpose=Run.Purpose.ENTRY).select_related("entry__pull_request")
    judged = runs.filter(state__in=(Run.State.FINISHED, Run.State.STOPPED))
    able = [run for run in judged if flood.find_idea(run.entry).multiplier >= ENOUGH]
    disputed = Confirmation.objects.filter(outcome=Confirmation.Outcome.WORSE).count()
    return {
        "decisions_a_day": round((len(flood.for_person) + disputed) / flood.days, 2),
        "verdict_hours_median": round(statistics.median(hours), 2),
        "verdict_hours_p95": round(sorted(hours)[int(0.95 * (len(hours) - 1))], 2),
        "gpu_hours_a_gain": round(spent / found, 1) if found else None,
        "gains": sum(idea.kind == "gain" for idea in flood.ideas.values()),
        "gains_found": found,
        "false_records": count_false_records(flood),
        "wrong_stops": sum(run.state == Run.State.STOPPED for run in able),
        "runs_that_reach_enough": len(able),
        "gpu_hours": round(spent, 1),
        "pull_requests": len(flood.ideas) - 1,
        "runs_begun": runs.filter(started_at__isnull=False).count(),
        "runs_stopped": runs.filter(state=Run.State.STOPPED).count(),
        "board_age_seconds_most": round(max(flood.ages, default=0.0), 2),
        "requests_a_second_peak": round(max(flood.requests.values(), default=0) / 60, 2),
        "queries_a_second_peak": round(max(flood.queries.values(), default=0) / 60, 1),
        "messages": flood.messages,
    }


def count_found(flood: Flood) -> int:
    """Return how many gains are above 1 with confidence on the track that pull requests name."""
    better = Standing.objects.filter(table__track__slug=TARGET, table__axis="flops", multiplier_low__gt=1)
    rows = better.filter(is_baseline=False).select_related("entry__pull_request")
    return sum(flood.find_idea(row.entry).kind == "gain" for row in rows)


def sum_gpu_hours() -> float:
    leases = Lease.objects.filter(gpus__gt=0, ended_at__isnull=False).values_list("started_at", "ended_at")
    return sum((ended - started).total_seconds() for started, ended in leases) / 3600


def list_verdict_hours(flood: Flood) -> list[float]:
    """Return the hours to the first verdict; of a pull request without one those until the end of the flood."""
    entries = dict(Entry.objects.exclude(pull_request=None).values_list("pk", "pull_request__number"))
    events = Event.objects.filter(VERDICTS, target_kind="entry", target_id__in=entries)
    runs = Run.objects.filter(entry__in=entries, finished_at__isnull=False).values_list("entry", "finished_at")
    refused = PullRequest.objects.filter(entry=None, seen_at__isnull=False).exclude(problems=[])
    first: dict[int, datetime] = dict(refused.values_list("number", "seen_at"))
    for entry, at in chain(events.values_list("target_id", "at"), runs):
        first[entries[entry]] = min(at, first.get(entries[entry], at))
    end = flood.clock.to_datetime(flood.days * DAY)
    ideas = [idea for idea in flood.ideas.values() if idea.number]
    return [(first.get(idea.number, end) - flood.clock.to_datetime(idea.at)).total_seconds() / 3600 for idea in ideas]


def count_false_records(flood: Flood) -> int:
    """Return how many records are no better than the baseline and the records before, or read later tokens."""
    count, best = 0, dict.fromkeys(flood.tracks, 1.0)
    records = Confirmation.objects.filter(outcome=Confirmation.Outcome.RECORD).order_by("decided_at")
    for entry in (each.entry for each in records.select_related("entry__track", "entry__pull_request")):
        idea = flood.find_idea(entry)
        count += idea.multiplier <= best[entry.track.slug] or idea.kind == "cheat"
        best[entry.track.slug] = max(best[entry.track.slug], idea.multiplier)
    return count
