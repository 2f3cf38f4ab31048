"""Template filters for entries, runs and the calendar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leaderboard import formatting, reproduction, run_jobs
from leaderboard.job_handlers.generation import can_generate
from leaderboard.models import Entry, Night, Run
from leaderboard.models.entries import web_address
from leaderboard.runs import list_rewind_steps
from leaderboard.schedule.calendar import NextNightly

register = template.Library()

STATUS = {
    Run.State.WAITING: "needs approval",
    Run.State.QUEUED: "waiting",
    Run.State.TRAINING: "running",
    Run.State.PAUSED: "delayed",
    Run.State.SCORING: "being scored",
    Run.State.FINISHED: "arrived",
    Run.State.FAILED: "failed",
    Run.State.CANCELLED: "cancelled",
    Run.State.STOPPED: "stopped",
}

DUE = {"stays": "delayed", "waits": "no platform", "baseline": "main is broken", "leaves": "on time"}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

NEXT = {
    Entry.State.PROPOSED: "Waits for a maintainer to read and approve exactly this commit.",
    Entry.State.SMOKE: "A short trial on a CPU runs first; then a maintainer reads this commit.",
    Entry.State.APPROVED: "Approved: its runs are below.",
    Entry.State.REJECTED: "Not approved. A new commit is a new entry.",
    Entry.State.WITHDRAWN: "Withdrawn by its author.",
}


@register.filter
def status(run: Run) -> str:
    if run.state == Run.State.TRAINING and not run.step:
        return "boarding"
    if run.state == Run.State.WAITING and run.entry.state == Entry.State.APPROVED:
        return "being prepared"
    return STATUS[Run.State(run.state)]


@register.filter
def status_label(run: Run) -> SafeString:
    return format_html('<span class="status is-{}">{}</span>', run.state, status(run))


@register.filter
def stops(run: Run) -> list[dict[str, Any]]:
    """Return a run's stops, each passed, here, ahead or failed, with the completed share of its leg to the next."""
    ended = run.state in Run.WITHOUT_RESULT
    trained = run.trained_at is not None or run.state in (Run.State.SCORING, Run.State.FINISHED)
    finished = run.state == Run.State.FINISHED
    departed = run.started_at is not None
    scoring = "passed" if finished else "failed" if ended and trained else "here" if trained else "ahead"
    start = "passed" if trained else "failed" if ended else "here" if departed else "ahead"
    board, arrived = ("passed", run.finished_at) if finished else ("ahead", None)
    training, scored = 1.0 if trained else run.fraction, 1.0 if finished else 0.0
    return [
        {"name": "Departure", "state": start, "at": run.started_at, "leg": training, "leg_name": "Training"},
        {"name": "Scoring", "state": scoring, "at": run.trained_at, "leg": scored, "leg_name": "Scoring"},
        {"name": "Board", "state": board, "at": arrived, "leg": None},
    ]


@register.filter
def is_moving(run: Run) -> bool:
    return run.state in (Run.State.TRAINING, Run.State.PAUSED) and run.step > 0


@register.filter
def look_ahead(run: Run) -> str:
    """Describe the correction for later tokens that the scorer added to the score; empty if it made none."""
    check = run.checks.get("look_ahead") or {}
    if check.get("nats_per_token") is None:
        return ""
    nats, error = signed(check["nats_per_token"]), formatting.decimals(check.get("stderr"), 4)
    correction = f"{nats} ± {error} nats per token"
    if not check.get("is_beyond_rounding"):
        return f"{correction}, within rounding"
    without = formatting.decimals(check.get("bits_per_byte_uncorrected"), 4)
    return f"{correction}; without it the score would be {without} bits per byte"


@register.filter
def scorer_facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what the scorer found beside the scores."""
    if correction := look_ahead(run):
        yield "Look-ahead correction", correction
    training = run.checks.get("training") or {}
    if (nats := training.get("nats")) is not None:
        allowed = formatting.decimals(training.get("allowed"), 4)
        yield "By the training graph", f"{signed(nats)} nats per token; its random numbers explain {allowed}"
    untrained = run.checks.get("untrained") or {}
    if (bits := untrained.get("bits_per_byte")) is not None:
        unigram = formatting.decimals(untrained.get("unigram_bits_per_byte"), 4)
        yield "Before training", f"{bits:.4f} bits per byte; the text’s token frequencies alone {unigram}"
    products = run.checks.get("products") or {}
    if products.get("precision") == "tf32":
        change, error = (formatting.decimals(products.get(f"tf32_{name}"), 6) for name in ("nats_per_token", "stderr"))
        change = f"{change.replace('-', '−')} ± {error} nats per token"
        yield "Rounding", f"benchmarks in TF32, which changes the text by {change}"
    if run.suite_seconds:
        each = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in run.suite_seconds.items())
        yield "Time of the benchmarks", each
        if limit := run.track.suite_limit:
            yield "Questions", f"{limit} of each part of a benchmark at most"
    if run.scoring_flops_per_token:
        yield "Scoring FLOPs", f"{formatting.power(run.scoring_flops_per_token, 3)} per token"


@register.filter
def decision(entry: Entry) -> str:
    if entry.state == Entry.State.PROPOSED and entry.smoke.get("passed") is False:
        return "Its smoke test failed. Push a fix: it becomes a new entry with a smoke test of its own."
    return entry.reason or NEXT[Entry.State(entry.state)]


@register.filter
def decision_awaited(run: Run) -> str:
    return run.reason or f"A maintainer has to approve commit {run.entry.sha[:8]} first."


@register.filter
def parameters(run: Run) -> int | None:
    """Return the model's size: as scored, else as the training process reports it, else that of its graph."""
    reported = run.config.get("parameters")
    total = reported.get("total") if isinstance(reported, dict) else None
    return run.parameters or (total if isinstance(total, int) else run_jobs.count_trained_parameters(run) or None)


register.filter(can_generate)


register.filter(web_address)


@register.filter
def commit_url(entry: Entry) -> str:
    """Return the commit's address; empty for a folder of the server."""
    if not entry.public_repository:
        return ""
    return f"{entry.public_repository.rstrip('/').removesuffix('.git')}/commit/{entry.sha}"


@register.filter
def changes_url(entry: Entry) -> str:
    """Return the address of its difference from main; empty if unknown."""
    if not entry.base_sha or not entry.public_repository.startswith("https://github.com/"):
        return ""
    return f"{entry.public_repository.rstrip('/').removesuffix('.git')}/compare/{entry.base_sha}...{entry.sha}"


@register.filter
def provenance(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield the facts of a result's origin. Paths of the server are left out."""
    size = parameters(run)
    yield "Commit", run.entry.sha
    if run.entry.public_repository:
        yield "Repository", run.entry.public_repository
    if run.graph is not None:
        yield "Graph", run.graph.hash
    yield "Seed", run.seed
    yield "Budget", f"{formatting.budget(run.budget)}, {formatting.share(run.part)}"
    yield "Dataset", f"{run.season.corpus}, {run.season.tokenizer}"
    yield "Dataset hash", reproduction.dataset_hash(run) or formatting.MISSING
    yield "Season", run.season.name
    if start := run.start_run:
        link = format_html('<a href="{}">run {}</a>', start.get_absolute_url(), start.pk)
        step = f" at step {run.start_checkpoint.step:,}" if run.start_checkpoint else ""
        yield "Starts from", format_html("{}{}, {}", link, step, start.entry.title)
    if run.node_name:
        yield "Node", f"{run.node_name}, {run.node_class}" if run.node_class else run.node_name
    if size:
        yield "Parameters", f"{size:,}"
    if run.tokens:
        yield "Tokens", f"{run.tokens:,}"
    if run.train_seconds:
        yield "Training time", formatting.duration(run.train_seconds)
    if run.train_flops:
        yield "Training FLOPs", formatting.power(run.train_flops)


register.filter("rewind_steps", list_rewind_steps)
register.filter("commands", reproduction.write_commands)
register.filter("environment", reproduction.list_environment)
register.filter("lock", reproduction.write_lock)


@register.filter
def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


@register.filter
def signed(value: float) -> str:
    """0.0123 is +0.0123; a real minus before what is below 0."""
    return f"{value:+.4f}".replace("-", "−")


@register.filter
def at(values: Sequence[Any], place: int) -> Any:
    return values[place]


# --- the calendar -----------------------------------------------------------------------------------------------------


@register.filter
def due_status(line: NextNightly) -> str:
    return DUE[line.state]


@register.filter
def night_state(night: Night) -> str:
    return night.run.state if night.run else Run.State.CANCELLED


@register.filter
def night_word(night: Night) -> str:
    if night.run is None:
        return "late" if night.is_waiting else "no run"
    if night.run.state == Run.State.FINISHED:
        return f"{night.run.bits_per_byte:.4f}"
    return status(night.run)


@register.filter
def weekday(number: int) -> str:
    return DAYS[number]


@register.filter
def seconds_since(end: datetime, begin: datetime) -> float:
    return (end - begin).total_seconds()
