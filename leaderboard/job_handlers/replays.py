"""Jobs of kind `replay`: a trusted node trains a random stretch of a run again and compares the checkpoints.

The stretch is drawn uniformly from all stretches of the nodes that are due, including the one from the initial weights,
by a rank that only the server can compute (`scheduler.checkpoints.draw_rank`). While a run trains, the server keeps the
files of one stretch for each node: the one that would be drawn if the run ended now. One false stretch of k is found
with probability 1 / k; adaptive replication as in BOINC (`scheduler.node_vetting`) deters cheating, not a single check.

With a budget in seconds, the replay reads what each step was charged from the claimed checkpoint, so that its schedule
is the same. Not covered: runs on several devices, which stay provisional on a new node; the optimizer's half of a
checkpoint; a stretch that several nodes shared counts for the one that ended it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from leaderboard import graphs, initial_weights, run_jobs
from leaderboard.models import Replay, Run
from leaderboard.rankings import trust
from leaderboard.sanitize import sanitize_text
from scheduler import checkpoints, node_vetting
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import SITE_ACTOR, Checkpoint, Event, Job, Lease, Node
from scheduler.transitions import transition
from trainer import protocol

# Thresholds, relative to the distance that the weights moved in the stretch. In between a maintainer decides. Measured
# on stretches of 50 to 150 steps of a small `gpt`: same machine 0; fp32 on other hardware under 0.01; gradients with
# bf16 noise up to 0.09; 20 % more steps than reported 0.3, 50 % more 0.6; other data 1.2.
AGREES = 0.1
DIFFERS = 0.3


class ReplayError(ValueError):
    """The run cannot be replayed; the message is for the user."""


@dataclass(frozen=True)
class Stretch:
    start: Checkpoint | None  # None: the initial weights
    end: Checkpoint

    @property
    def node(self) -> Node | None:
        return self.end.lease.node if self.end.lease else None


def list_stretches(run: Run) -> list[Stretch]:
    """Return the stretches between neighboring checkpoints that still have their files, from the initial weights on.

    Empty if the run cannot be replayed.
    """
    if run.is_swarm or run_jobs.get_configuration(run).get("devices", 1) != 1:
        return []
    ends = list(Checkpoint.objects.uploaded().filter(job=run.job_id).select_related("lease__node").order_by("step"))
    return [
        Stretch(start, end)
        for start, end in zip([None, *ends], ends, strict=False)
        if end.step > 0 and end.files_deleted_at is None and (start is None or start.files_deleted_at is None)
    ]


def draw_replay(run: Run) -> Replay | None:
    """Draw whether this run is checked, and queue the replay. Requires the transaction that ends the training."""
    assert run.job is not None, "a trained run has a job"
    due = {node.pk for node in trust.find_training_nodes(run.job) if node_vetting.draw_check(node)}
    drawable = [stretch for stretch in list_stretches(run) if stretch.node and stretch.node.pk in due]
    if not drawable:
        return None
    return queue_replay(run, min(drawable, key=lambda stretch: checkpoints.draw_rank(stretch.end)), actor=SITE_ACTOR)


def request_replay(run: Run, *, actor: str) -> Replay:
    """Queue the replay of a random stretch for a maintainer. Raise ReplayError if there is none."""
    if run.job_id is None or run.trained_at is None:
        raise ReplayError(f"Run {run.pk} has not been trained to its end.")
    drawable = list_stretches(run)
    if not drawable:
        raise ReplayError(f"Run {run.pk} cannot be replayed: its checkpoints are gone, or it had several devices.")
    with transaction.atomic():
        return queue_replay(run, secrets.choice(drawable), actor=actor)


def queue_replay(run: Run, stretch: Stretch, *, actor: str) -> Replay:
    first = stretch.start.step if stretch.start else 0
    replay = Replay.objects.create(
        run=run,
        node=stretch.node,
        job=Job.objects.create(**build_replay_job(run, stretch, first)),
        start=stretch.start,
        start_step=first,
        claimed=stretch.end,
        end_step=stretch.end.step,
    )
    Event.record(actor, run, f"Replay of steps {first} to {stretch.end.step} on another, trusted node queued.")
    return replay


def build_replay_job(run: Run, stretch: Stretch, first: int) -> dict[str, object]:
    """Return the fields of the job. Nodes of the sponsor and of the author are excluded."""
    assert run.job is not None
    node = stretch.node
    people = {node.owner_id if node else None, run.entry.requested_by_id} - {None}
    steps = max(run.step, stretch.end.step, 1)
    return {
        **run_jobs.build_train_job(run, run.job.release),
        "kind": "replay",
        "checkpoint_seconds": 0.0,  # it leaves none
        "preemptible": False,
        "priority": Job.Priority.CONFIRMATION,
        "expected_seconds": max(run.track.expected_seconds * (stretch.end.step - first) / steps, 1.0),
        "needs_trusted": True,
        "excluded_nodes": [node.pk] if node else [],
        "excluded_owners": sorted(people),  # type: ignore[type-var]
    }


class ReplayHandler(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.ReplayOrder:
        replay = Replay.objects.select_related("run__entry", "run__track", "run__season").get(job=job)
        assert replay.claimed is not None, "kept until the replay is over"
        start = protocol.Checkpoint.model_validate(replay.start.manifest) if replay.start else None
        return protocol.ReplayOrder(
            dataset=replay.run.season.dataset("train", "dev"),
            config=run_jobs.get_configuration(replay.run),
            graph=graphs.build_order_files(replay.run.graph),
            start=start,
            base=initial_weights.get_initial_weights(replay.run),
            claimed=protocol.Checkpoint.model_validate(replay.claimed.manifest),
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        replay = Replay.objects.select_related("run").get(job=job)
        message = f"Replaying steps {replay.start_step} to {replay.end_step} on {lease.node.name}."
        Event.record(f"node:{lease.node.name}", replay.run, message)

    def handle_done(self, job: Job, result: dict[str, object]) -> None:
        replay = Replay.objects.select_related("run", "node").get(job=job)
        lease = job.leases.select_related("node").last()
        try:
            found = protocol.ReplayResult.model_validate(result)
        except ValidationError:
            abandon_replay(replay, "the answer is invalid")
            return
        if lease is None or not lease.node.trusted:
            abandon_replay(replay, "the node that replayed it is not trusted")
            return
        apply_comparison(replay, found, lease.node.name)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        abandon_replay(Replay.objects.select_related("run").get(job=job), reason)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        abandon_replay(Replay.objects.select_related("run").get(job=job), reason)

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        summaries = {}
        for replay in Replay.objects.filter(job__in=jobs).select_related("run__entry"):
            outcome = replay.sentence or replay.get_state_display().lower()
            title = f"Spot check of {replay.run.entry.title}"
            summaries[replay.job_id or 0] = JobSummary(title, replay.run.get_absolute_url(), outcome)
        return summaries


def apply_comparison(replay: Replay, found: protocol.ReplayResult, node_name: str) -> None:
    """Store the outcome, and apply it to the node that trained and to the run."""
    state, message = judge_comparison(replay, found)
    actor = f"node:{node_name}"
    if not finish_replay(replay, state, f"{message} (on {node_name})", actor, deviation=found.deviation):
        return
    if state == Replay.State.ABANDONED:
        return
    is_valid = state == Replay.State.AGREED
    if replay.node is not None and replay.job is not None:
        verdict = f"Steps {replay.start_step} to {replay.end_step} of run {replay.run_id}: {message}"
        node_vetting.record_verdict(replay.node, replay.job, is_valid, verdict, actor=actor)
    if is_valid:
        trust.mark_scored(replay.run)
    else:
        trust.transition_trust(replay.run, Run.Trust.DISPUTED, actor=actor, sentence=f"Disputed: {message}")


def judge_comparison(replay: Replay, found: protocol.ReplayResult) -> tuple[Replay.State, str]:
    """Return the verdict and its message."""
    if found.step < replay.end_step:
        return Replay.State.DIFFERED, f"the budget is used up at step {found.step}, not at {replay.end_step}."
    if found.exact:
        return Replay.State.AGREED, "replayed to the last bit."
    deviation = f"the replay ended {found.deviation:.3g} of the stretch's length away"
    if found.deviation <= AGREES:
        return Replay.State.AGREED, f"{deviation}, which rounding on other hardware explains."
    if found.deviation >= DIFFERS:
        return Replay.State.DIFFERED, f"{deviation}: the run's code and data do not give this result."
    return Replay.State.ABANDONED, f"{deviation}: neither a match nor a mismatch. A maintainer has to decide."


def abandon_replay(replay: Replay, reason: str) -> None:
    reason = sanitize_text(reason, 300).rstrip(".")
    finish_replay(replay, Replay.State.ABANDONED, f"could not be replayed: {reason}.", SITE_ACTOR)


def finish_replay(
    replay: Replay, state: Replay.State, message: str, actor: str, *, deviation: float | None = None
) -> bool:
    """End a replay, once, and release its checkpoints."""
    with transaction.atomic():
        is_finished = transition(
            replay,
            state,
            since=[Replay.State.WAITING],
            actor=actor,
            message="",
            sentence=message[:500],
            deviation=deviation,
            start=None,
            claimed=None,
            finished_at=timezone.now(),
        )
        if is_finished:
            Event.record(actor, replay.run, f"Steps {replay.start_step} to {replay.end_step}: {message}")
    return is_finished
