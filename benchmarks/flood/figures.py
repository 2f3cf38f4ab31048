"""What a flood came to: sums, which floods can be added by, and the hours of each verdict."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from statistics import median
from typing import Any

from django.db.models import Q

from benchmarks.flood.authors import DAY, ENOUGH
from benchmarks.flood.simulation import TARGET, Flood
from leaderboard.models import Confirmation, Entry, PullRequest, Run, Standing
from scheduler import credit
from scheduler.models import Event, Lease

VERDICTS = Q(kind__in=[f"policy.{word}" for word in ("smoke", "caps", "duplicate", "behind")])
VERDICTS |= Q(sentence__startswith="Smoke test failed") | Q(sentence__startswith="Entry rejected")
"""Events with which an author gets a verdict before a run."""


def sum_up(flood: Flood) -> dict[str, Any]:
    runs = Run.objects.filter(purpose=Run.Purpose.ENTRY).select_related("entry__pull_request")
    stopped = runs.filter(state=Run.State.STOPPED)
    able = [run for run in runs.filter(state=Run.State.FINISHED) if flood.find_idea(run.entry).multiplier >= ENOUGH]
    wrong = sum(flood.find_idea(run.entry).multiplier >= ENOUGH for run in stopped)
    hours, undecided = list_verdict_hours(flood)
    return {
        "days": flood.days,
        "pull_requests": len(flood.ideas) - 1,
        "decisions": len(flood.decisions),
        "gpu_hours": sum_gpu_hours(flood.clock.now),
        "gains": sum(idea.is_gain for idea in flood.ideas.values()),
        "gains_found": count_found(flood),
        "records": Confirmation.objects.filter(outcome=Confirmation.Outcome.RECORD).count(),
        "false_records": count_false_records(flood),
        "wrong_stops": wrong,
        "runs_that_reach_enough": len(able) + wrong,
        "runs_begun": runs.filter(started_at__isnull=False).count(),
        "runs_stopped": stopped.count(),
        "runs_disputed": Run.objects.filter(trust=Run.Trust.DISPUTED).count(),
        "without_verdict": undecided,
        "verdict_hours": hours,
    }


def report(floods: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of several floods together. Without a verdict, the hours until the end count."""
    total = {name: sum((flood[name] for flood in floods[1:]), start=floods[0][name]) for name in floods[0]}
    hours, found = sorted(total.pop("verdict_hours")), total["gains_found"]
    return {
        "decisions_a_day": round(total["decisions"] / total["days"], 2),
        "verdict_hours_median": round(median(hours), 2),
        "verdict_hours_p95": round(hours[int(0.95 * (len(hours) - 1))], 2),
        "gpu_hours_a_gain": round(total["gpu_hours"] / found, 1) if found else None,
        **total,
        "gpu_hours": round(total["gpu_hours"], 1),
    }


def count_found(flood: Flood) -> int:
    """Return how many gains are above 1 with confidence on the track that pull requests name."""
    better = Standing.objects.filter(table__track__slug=TARGET, table__axis="flops", multiplier_low__gt=1)
    rows = better.filter(is_baseline=False).select_related("entry__pull_request")
    return sum(flood.find_idea(row.entry).is_gain for row in rows)


def sum_gpu_hours(now: datetime) -> float:
    """Return the hours of an H100, as the site credits them, of all leases of GPUs."""
    hours = 0.0
    for lease in Lease.objects.filter(gpus__gt=0).select_related("node"):
        _, card = credit.describe_slot_gpus(lease.node.hardware, 0, 1)
        hours += credit.convert_to_h100_hours(card, ((lease.ended_at or now) - lease.started_at).total_seconds())
    return hours


def list_verdict_hours(flood: Flood) -> tuple[list[float], int]:
    """Return the hours to each first verdict, without one those until the end; and how many have none."""
    entries = dict(Entry.objects.exclude(pull_request=None).values_list("pk", "pull_request__number"))
    events = Event.objects.filter(VERDICTS, target_kind="entry", target_id__in=entries)
    runs = Run.objects.filter(entry__in=entries, finished_at__isnull=False).values_list("entry", "finished_at")
    refused = PullRequest.objects.filter(entry=None, seen_at__isnull=False).exclude(problems=[])
    first: dict[int, datetime] = dict(refused.values_list("number", "seen_at"))
    for entry, at in chain(events.values_list("target_id", "at"), runs):
        first[entries[entry]] = min(at, first.get(entries[entry], at))
    end = flood.clock.to_datetime(flood.days * DAY)
    ideas = [idea for idea in flood.ideas.values() if idea.number]
    spans = [first.get(idea.number, end) - flood.clock.to_datetime(idea.at) for idea in ideas]
    return [span.total_seconds() / 3600 for span in spans], sum(idea.number not in first for idea in ideas)


def count_false_records(flood: Flood) -> int:
    """Return how many records are no better than the baseline and the records before, or read later tokens."""
    count, best = 0, dict.fromkeys(flood.tracks, 1.0)
    records = Confirmation.objects.filter(outcome=Confirmation.Outcome.RECORD).order_by("decided_at")
    for entry in (each.entry for each in records.select_related("entry__track", "entry__pull_request")):
        idea = flood.find_idea(entry)
        count += idea.multiplier <= best[entry.track.slug] or idea.ahead > 0
        best[entry.track.slug] = max(best[entry.track.slug], idea.multiplier)
    return count
