"""Jobs of kind `smoke`: an entry is traced and tested. `leaderboard.submissions.smoke_tests` queues the tests.

`leaderboard.graphs` stores the graph. The outcome is the entry's if the job is its smoke test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import F
from pydantic import ValidationError

from leaderboard import graphs, runs
from leaderboard.models import Entry, Run, TracedGraph
from leaderboard.sanitize import sanitize_json, sanitize_text
from leaderboard.submissions.smoke_tests import get_peak_flops
from scheduler import matching
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import SITE_ACTOR, Blob, Job
from scheduler.transitions import transition
from trainer import protocol

AFTER_FAILURE = "Approved, but its smoke test failed: {} Approve it again to train it anyway."


class SmokeTestHandler(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.SmokeOrder:
        graph = get_graph(job)
        needs = matching.parse_labels(tuple(graph.track.needs_labels))
        names_gpu = any(matching.MODEL_LABEL.fullmatch(label) for label in needs.names)  # of unknown memory
        memory_bytes = needs.gpus * needs.gpu_memory_bytes or graph.track.training_limits().memory_bytes
        device = {"device": "cuda"} if needs.gpus or names_gpu else {}
        return protocol.SmokeOrder(
            config={**device, **graph.config},
            tokenizer=graph.season.tokenizer,
            vocabulary_size=graph.season.vocabulary_size,
            trace_only=graph.entry.smoke_job_id != job.pk,
            memory_bytes=None if names_gpu and not needs.gpus else float(memory_bytes),
            peak=get_peak_flops(needs),
        )

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        try:
            found = protocol.SmokeResult.model_validate(result)
        except ValidationError:
            record_outcome(job, None, "The smoke test's answer is invalid; it says nothing about this commit.")
            return
        numbers = sanitize_json(found.model_dump(mode="json", exclude={"graph"}))
        record_outcome(job, found.passed, found.sentence, numbers, found.graph)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        if cause == "model":
            record_outcome(job, False, reason)
        else:
            record_outcome(job, None, f"The smoke test could not run, which says nothing about this commit: {reason}")

    def handle_cancellation(self, job: Job, reason: str) -> None:
        graph = get_graph(job)
        graphs.lock_season(graph.season_id)
        for run in graph.runs.filter(state=Run.State.WAITING):
            runs.cancel_run(run, reason, SITE_ACTOR)
        record_outcome(job, None, f"The smoke test was cancelled: {reason}")

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        summaries = {}
        for graph in TracedGraph.objects.filter(job__in=jobs).select_related("entry"):
            entry = graph.entry
            outcome = entry.smoke_sentence if entry.smoke_job_id == graph.job_id else graph.problem
            summaries[graph.job_id] = JobSummary(f"Smoke test of {entry.title}", entry.get_absolute_url(), outcome)
        return summaries


def get_graph(job: Job) -> TracedGraph:
    return TracedGraph.objects.select_related("entry", "track", "season", "job", "baseline_graph").get(job=job)


def record_outcome(
    job: Job,
    passed: bool | None,
    message: str,
    numbers: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
) -> None:
    """Store the outcome and the graph, and let the entry's runs continue. `passed` is None if it says nothing.

    Requires the transaction that ends the job.
    """
    message, graph = sanitize_text(message, 500), get_graph(job)
    graphs.lock_season(graph.season_id)
    entry = Entry.objects.select_for_update(no_key=True).get(pk=graph.entry_id)
    graph = get_graph(job)  # its baseline graph may have been traced meanwhile
    graphs.store_trace(graph, summary, "" if passed else message)
    if entry.smoke_job_id == job.pk:
        store_smoke_result(entry, passed, message, numbers or {})
    fail_runs(graph, "infrastructure" if passed is None else "model", graph.problem)
    if entry.state == Entry.State.APPROVED:
        queue_waiting_runs(entry, job.release)
    for compared in graph.compared_graphs.filter(problem="").select_related("entry", "season", "baseline_graph"):
        compare_with_baseline(compared, job.release)


def compare_with_baseline(graph: TracedGraph, release: Blob) -> None:
    """Check the caps of a graph whose baseline graph has ended, and let its entry's runs continue."""
    baseline = graph.baseline_graph
    assert baseline is not None, "its graphs are those that refer to it"
    if not baseline.hash:
        fail_runs(
            graph,
            "infrastructure",
            f"The baseline, with which it is compared, has no graph. {baseline.problem} A maintainer can retry it.",
        )
    elif graph.hash:
        graphs.check_caps(graph)
        fail_runs(graph, "model", graph.problem)
    if graph.entry.state == Entry.State.APPROVED:
        queue_waiting_runs(graph.entry, release)


def fail_runs(graph: TracedGraph, cause: protocol.Cause, reason: str) -> None:
    """Fail the runs that wait for the graph, if there is a reason."""
    for run in graph.runs.filter(state=Run.State.WAITING) if reason else ():
        runs.fail_waiting_run(run, cause, reason)


def store_smoke_result(entry: Entry, passed: bool | None, message: str, numbers: dict[str, Any]) -> None:
    verdict = {True: "passed", False: "failed", None: "without a verdict"}[passed]
    transition(
        entry,
        Entry.State.PROPOSED if entry.state == Entry.State.SMOKE else entry.state,
        since=[entry.state],
        actor=SITE_ACTOR,
        message=f"Smoke test {verdict}: {message}",
        smoke={**numbers, "passed": passed},
        smoke_sentence=message,
        obstacle="",
        waits_for=None,
        family=entry if entry.family_id == entry.pk else None,  # its graph may be another
    )
    entry.refresh_from_db()


def queue_waiting_runs(entry: Entry, release: Blob) -> None:
    """Queue the runs that wait for a smoke test. After a failed test they wait until a maintainer approves again."""
    waiting = entry.runs.select_related("entry", "track", "season").filter(state=Run.State.WAITING)
    if entry.smoke.get("passed") is False:
        reason = AFTER_FAILURE.format(entry.smoke_sentence)[:500]
        waiting.update(reason=reason, revision=F("revision") + 1)
        return
    for run in waiting:
        runs.queue_run(run, release=release)
