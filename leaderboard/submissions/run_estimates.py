"""What an entry's run is going to be, before it begins: how large, how much it reads, and about when it is over.

The size is what the smoke run counted; the pace and the waiting are those of the track's and the pool's recent past.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median
from typing import Any

from django.db.models import F
from django.utils import timezone

from leaderboard import runs
from leaderboard.formatting import compact, duration, power
from leaderboard.job_handlers import smoke_tests
from leaderboard.models import Entry, Run, Track
from scheduler import matching
from scheduler.estimates import QueueEstimates, format_time
from scheduler.models import Job
from trainer.accounting.budget import Budget

RECENT_RUNS = 20
"""Past runs that say how fast a track's machines are."""
DEFAULT_UTILIZATION = 0.4
"""Of the machines' peak, where no run has told yet: what nanochat's and our own larger runs come to."""


@dataclass(frozen=True)
class RunEstimate:
    """None: nobody can say."""

    parameters: float
    parameters_embedding: float | None
    flops_per_token: float | None
    tokens: float | None
    """That its budget pays for."""
    seconds: float
    """That it works."""
    begins_at: datetime | None
    ends_at: datetime | None
    waits: str
    """For what, in a sentence."""

    @property
    def parameters_rest(self) -> float | None:
        return None if self.parameters_embedding is None else self.parameters - self.parameters_embedding

    def sentence(self, now: datetime) -> str:
        """Return all of it for a comment, where there is no page to look at."""
        said = f"{compact(self.parameters)} parameters"
        if self.parameters_embedding:
            said += f" ({compact(self.parameters_embedding)} of them embeddings)"
        if self.flops_per_token:
            said += f", {power(self.flops_per_token, 3)} FLOPs a token"
        if self.tokens:
            said += f", about {compact(self.tokens)} tokens in the budget"
        said += f"; takes about {duration(self.seconds)}"
        return said + (f", done about {format_time(self.ends_at, now)} if it is queued now." if self.ends_at else ".")

    def to_dict(self) -> dict[str, Any]:
        moments = {name: at.isoformat() if (at := getattr(self, name)) else None for name in ("begins_at", "ends_at")}
        return {**asdict(self), **moments}


def estimate_run(entry: Entry, queue_estimates: QueueEstimates | None = None) -> RunEstimate | None:
    """Return it for the entry's whole run; None before a smoke run has counted its size.

    `entry` should have its `track__season`. Without `queue_estimates` it looks at the queue itself.
    """
    parameters = entry.smoke.get("parameters")
    if not isinstance(parameters, int | float):
        return None
    queue_estimates = queue_estimates or QueueEstimates(timezone.now())
    job = get_whole_job(entry)
    prospect = queue_estimates.get_estimate(job) if job.pk else queue_estimates.estimate_if_queued(job)
    flops = get_number(entry, "flops_per_token")
    return RunEstimate(
        parameters=parameters,
        parameters_embedding=get_number(entry, "parameters_embedding"),
        flops_per_token=flops,
        tokens=count_budget_tokens(entry.track, flops, get_number(entry, "tokens_per_step")),
        seconds=queue_estimates.durations.get_duration(job).total_seconds(),
        begins_at=prospect.begins_at,
        ends_at=prospect.ends_at,
        waits=prospect.reason,
    )


def is_before_start(entry: Entry) -> bool:
    """Whether its run has not begun, so that an estimate says something."""
    is_open = entry.state in (Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED)
    ahead = (Run.State.WAITING, Run.State.QUEUED)
    return is_open and bool(entry.smoke) and not entry.runs.exclude(state__in=ahead).exists()


def get_number(entry: Entry, name: str) -> float | None:
    value = entry.smoke.get(name)
    return value if isinstance(value, int | float) else None


def get_whole_job(entry: Entry) -> Job:
    """Return the job of its whole run: the one in the queue, or else one as it would be, without a row."""
    whole = entry.runs.filter(budget=entry.track.budget, job__isnull=False).select_related("job").first()
    if whole is not None and whole.job is not None:
        return whole.job
    track = entry.track
    run = Run(entry=entry, track=track, season=track.season, budget=track.budget, seed=0)
    fields = runs.build_train_job(run, None)
    return Job(**fields, queued_at=timezone.now())


def count_budget_tokens(track: Track, flops: float | None, step: float | None) -> float | None:
    """Return how many tokens the track's budget pays for."""
    budget = Budget.parse(track.budget)
    if budget.kind == "tokens":
        return budget.amount
    if budget.kind == "steps":
        return budget.amount * step if step else None
    whole = budget.amount if budget.kind == "flops" else budget.amount * (get_track_flops(track) or 0)
    return whole / flops if whole and flops else None


def get_track_flops(track: Track) -> float | None:
    """Return the FLOP/s that runs of this track came to, the last ones; a part of the machines' peak before any."""
    past = Run.objects.filter(track=track, train_flops__gt=0, train_seconds__gt=0).order_by("-finished_at")
    rates = past.annotate(rate=F("train_flops") / F("train_seconds")).values_list("rate", flat=True)[:RECENT_RUNS]
    if rates:
        return float(median(rates))
    peak = smoke_tests.get_peak_flops(matching.parse_labels(tuple(track.needs_labels)))
    return peak * DEFAULT_UTILIZATION if peak else None
