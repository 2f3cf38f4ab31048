"""Estimates of an entry's run before it starts: its size, its tokens, and when it ends.

The size comes from the smoke test, the speed from recent runs of the track, the start from the queue.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median
from typing import Any

from django.db.models import F
from django.utils import timezone

from leaderboard import graphs, run_jobs
from leaderboard.formatting import compact, duration, power
from leaderboard.models import Entry, Run, Track
from leaderboard.submissions import smoke_tests
from scheduler import matching
from scheduler.estimates import QueueEstimates, format_time
from scheduler.models import Job
from trainer.accounting.budget import Budget

RECENT_RUNS = 20  # to measure the speed of a track's machines
DEFAULT_UTILIZATION = 0.4  # of the machines' peak FLOP/s, before any run: as in nanochat and this project's larger runs


@dataclass(frozen=True)
class RunEstimate:
    """`tokens` are those of the budget; `seconds` is the time of training; `waits` says what for. None: unknown."""

    parameters: float
    parameters_embedding: float | None
    flops_per_token: float | None
    tokens: float | None
    seconds: float
    begins_at: datetime | None
    ends_at: datetime | None
    waits: str

    def describe(self, now: datetime) -> str:
        text = f"{compact(self.parameters)} parameters"
        if self.parameters_embedding:
            text += f" ({compact(self.parameters_embedding)} of them embeddings)"
        if self.flops_per_token:
            text += f", {power(self.flops_per_token, 3)} FLOPs a token"
        if self.tokens:
            text += f", about {compact(self.tokens)} tokens in the budget"
        text += f"; takes about {duration(self.seconds)}"
        return text + (f", done about {format_time(self.ends_at, now)} if it is queued now." if self.ends_at else ".")

    def to_dict(self) -> dict[str, Any]:
        times = {name: at.isoformat() if (at := getattr(self, name)) else None for name in ("begins_at", "ends_at")}
        return {**asdict(self), **times}


def estimate_run(entry: Entry, queue_estimates: QueueEstimates | None = None) -> RunEstimate | None:
    """Estimate the entry's run with the track's full budget; None before a smoke test has measured its size.

    `entry` should have its `track__season`.
    """
    parameters = entry.smoke.get("parameters")
    if not isinstance(parameters, int | float):
        return None
    queue_estimates = queue_estimates or QueueEstimates(timezone.now())
    job = get_full_budget_job(entry)
    start = queue_estimates.get_estimate(job) if job.pk else queue_estimates.estimate_if_queued(job)
    flops = get_number(entry, "flops_per_token")
    return RunEstimate(
        parameters=parameters,
        parameters_embedding=get_number(entry, "parameters_embedding"),
        flops_per_token=flops,
        tokens=count_budget_tokens(entry.track, flops, get_number(entry, "tokens_per_step")),
        seconds=queue_estimates.durations.get_duration(job).total_seconds(),
        begins_at=start.begins_at,
        ends_at=start.ends_at,
        waits=start.reason,
    )


def is_before_start(entry: Entry) -> bool:
    """Whether the entry's run has not started, so that an estimate is useful."""
    is_open = entry.state in (Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED)
    started = entry.runs.exclude(state__in=[Run.State.WAITING, Run.State.QUEUED])
    return is_open and bool(entry.smoke) and not started.exists()


def get_number(entry: Entry, name: str) -> float | None:
    value = entry.smoke.get(name)
    return value if isinstance(value, int | float) else None


def get_full_budget_job(entry: Entry) -> Job:
    track = entry.track
    run = entry.runs.filter(budget=track.budget, job__isnull=False).select_related("job").first()
    if run is not None and run.job is not None:
        return run.job
    run = Run(entry=entry, track=track, season=track.season, budget=track.budget, seed=0)
    if graphs.needs_graph(run):
        run.graph = entry.graphs.usable().last()
    return Job(**run_jobs.build_train_job(run, None), queued_at=timezone.now())


def count_budget_tokens(track: Track, flops: float | None, step: float | None) -> float | None:
    budget = Budget.parse(track.budget)
    if budget.kind == "tokens":
        return budget.amount
    if budget.kind == "steps":
        return budget.amount * step if step else None
    total = budget.amount if budget.kind == "flops" else budget.amount * (get_track_flops(track) or 0)
    return total / flops if total and flops else None


def get_track_flops(track: Track) -> float | None:
    """Return the median FLOP/s of recent runs of the track, or a part of the machines' peak before the first run."""
    past = Run.objects.filter(track=track, train_flops__gt=0, train_seconds__gt=0).order_by("-finished_at")
    rates = past.annotate(rate=F("train_flops") / F("train_seconds")).values_list("rate", flat=True)[:RECENT_RUNS]
    if rates:
        return float(median(rates))
    peak = smoke_tests.get_peak_flops(matching.parse_labels(tuple(track.needs_labels)))
    return peak * DEFAULT_UTILIZATION if peak else None
