"""Jobs of kind `replay`: a trusted node trains random stretches of a run again and compares the checkpoints.

Always the first stretch, from the initial weights, and two neighboring ones: the second goes on from the replay's own
state, so that what the checkpoint between them claims does not carry it. They are drawn uniformly from those that end
at a checkpoint of a node that is due, by a rank that only the server can compute (`scheduler.checkpoints.draw_rank`).
While a run trains, the server keeps the files that it would need if the run ended now. One false stretch of k is found
with probability 2 / k; adaptive replication as in BOINC (`scheduler.node_vetting`) deters cheating, not a single check.

With a budget in seconds, the replay reads what each step was charged from the claimed checkpoint, so that its schedule
is the same. Not covered: runs on several devices, which stay provisional on a new node; a stretch that several nodes
shared counts for the one that ended it.
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

# Thresholds, relative to the distance that the weights moved since the start. In between a maintainer decides. Measured
# on stretches of 50 to 150 steps of a small `gpt`: same machine 0; fp32 on other hardware under 0.01; gradients with
# bf16 noise up to 0.09; 20 % more steps than reported 0.3, 50 % more 0.6; other data 1.2.
# And of the state (`trainer.scoring.compare_replay`), over two stretches of 40 steps of a small `gpt` on a CPU, with
# every number of each gradient off by 0.2 %, as between two runs on a GPU: up to 0.13 from the initial weights, 0.02
# from step 80 on (weights 0.084 and 0.016). fp32 for bf16 0.145; momenta times 1.3 0.19, times 2 0.41, times 50 0.8.
AGREES = 0.1
DIFFERS = 0.3
STATE_AGREES = 0.2
STATE_DIFFERS = 0.4


class ReplayError(ValueError):
    """The run cannot be replayed; the message is for the user."""


@dataclass(frozen=True)
class Stretches:
    """Two neighboring stretches, or the first one alone."""

    start: Checkpoint | None  # None: the initial weights
    middle: Checkpoint | None  # None: one stretch
    end: Checkpoint

    @property
    def node(self) -> Node | None:
        return get_node(self.end)


def get_node(checkpoint: Checkpoint) -> Node | None:
    return checkpoint.lease.node if checkpoint.lease else None


def list_stretches(run: Run) -> list[Stretches]:
    """Return the stretches up to each checkpoint, as far as their ends still have their files.

    Empty if the run cannot be replayed.
    """
    if run.job is None or run.is_swarm or run_jobs.get_configuration(run).get("devices", 1) != 1:
        return []
    kept = checkpoints.list_kept(run.job)
    known = {checkpoint.pk: checkpoint for checkpoint in kept}
    found = [ends for end in kept if (ends := checkpoints.find_stretches(end, known)) is not None]
    return [
        Stretches(ends[0] if len(ends) == 3 else None, ends[-2] if len(ends) > 1 else None, ends[-1]) for ends in found
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


def queue_replay(run: Run, stretches: Stretches, *, actor: str) -> Replay:
    start_step = stretches.start.step if stretches.start else 0
    first = run.job.checkpoints.resumable().filter(step__gt=0).first() if run.job and stretches.start else None
    replay = Replay.objects.create(
        run=run,
        node=stretches.node,
        job=Job.objects.create(**build_replay_job(run, stretches, first)),
        start=stretches.start,
        start_step=start_step,
        middle=stretches.middle,
        first=first,
        claimed=stretches.end,
        end_step=stretches.end.step,
    )
    also = f"0 to {first.step} and " if first else ""
    Event.record(
        actor, run, f"Replay of steps {also}{start_step} to {stretches.end.step} on another, trusted node queued."
    )
    return replay


def build_replay_job(run: Run, stretches: Stretches, first: Checkpoint | None) -> dict[str, object]:
    """Return the fields of the job. The nodes that are checked, their owners and the author are excluded."""
    assert run.job is not None
    trained = [checkpoint for checkpoint in (first, stretches.middle, stretches.end) if checkpoint is not None]
    nodes = {node for checkpoint in trained if (node := get_node(checkpoint)) is not None}
    nodes = {node for node in nodes if node == stretches.node or not node.trusted}
    people = {node.owner_id for node in nodes} | {run.entry.requested_by_id}
    replayed = stretches.end.step - (stretches.start.step if stretches.start else 0) + (first.step if first else 0)
    steps = max(run.step, stretches.end.step, 1)
    return {
        **run_jobs.build_train_job(run, run.job.release),
        "kind": "replay",
        "checkpoint_seconds": 0.0,  # it leaves none
        "preemptible": False,
        "priority": Job.Priority.CONFIRMATION,
        "expected_seconds": max(run.track.expected_seconds * replayed / steps, 1.0),
        "needs_trusted": True,
        "excluded_nodes": sorted(node.pk for node in nodes),
        "excluded_owners": sorted(people - {None}),  # type: ignore[type-var]
    }


class ReplayHandler(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.ReplayOrder:
        replay = Replay.objects.select_related("run__entry", "run__track", "run__season").get(job=job)
        assert replay.claimed is not None, "kept until the replay is over"
        ends = (replay.start, replay.middle, replay.first)
        start, middle, first = (protocol.Checkpoint.model_validate(row.manifest) if row else None for row in ends)
        return protocol.ReplayOrder(
            dataset=replay.run.season.dataset("train", "dev"),
            config=run_jobs.get_configuration(replay.run),
            graph=graphs.build_order_files(replay.run.graph),
            start=start,
            middle=middle,
            first=first,
            base=initial_weights.get_initial_weights(replay.run),
            claimed=protocol.Checkpoint.model_validate(replay.claimed.manifest),
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        replay = Replay.objects.select_related("run").get(job=job)
        message = f"Replaying steps {replay.start_step} to {replay.end_step} on {lease.node.name}."
        Event.record(f"node:{lease.node.name}", replay.run, message)

    def handle_done(self, job: Job, result: dict[str, object]) -> None:
        replay = Replay.objects.select_related("run", "node").get(job=job)
        if replay.state != Replay.State.WAITING:
            return
        lease = job.leases.select_related("node").last()
        try:
            reported = protocol.ReplayResult.model_validate(result)
        except ValidationError:
            abandon_replay(replay, "the answer is invalid")
            return
        if lease is None or not lease.node.trusted:
            abandon_replay(replay, "the node that replayed it is not trusted")
            return
        apply_comparison(replay, reported, lease.node.name)

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
    state, message, checked_step = judge_comparison(replay, found)
    node = find_responsible_node(replay, state, checked_step)
    actor = f"node:{node_name}"
    if not finish_replay(replay, state, f"{message} (on {node_name})", actor, deviation=found.deviation):
        return
    if state == Replay.State.ABANDONED:
        return
    is_valid = state == Replay.State.AGREED
    if node is not None and replay.job is not None:
        verdict = f"Steps {replay.start_step} to {replay.end_step} of run {replay.run_id}: {message}"
        node_vetting.record_verdict(node, replay.job, is_valid, verdict, actor=actor)
    if is_valid:
        trust.mark_scored(replay.run)
    else:
        trust.apply_trust_event(replay.run, trust.TrustEvent.DISPUTE, actor=actor, message=f"Disputed: {message}")


def find_responsible_node(replay: Replay, state: Replay.State, step: int) -> Node | None:
    """Return the node that the verdict on the checkpoint of a step is about.

    None if that is unknown: the end differs and another node sent the checkpoint before it, whose state may have been
    false by less than the comparison sees.
    """
    if state != Replay.State.DIFFERED:
        return replay.node
    rows = [row for row in (replay.first, replay.middle, replay.claimed) if row is not None]
    nodes = {row.step: get_node(row) for row in rows}
    if step == replay.end_step and replay.middle is not None and nodes[replay.middle.step] != replay.node:
        return None
    return nodes.get(step, replay.node)


def judge_comparison(replay: Replay, reported: protocol.ReplayResult) -> tuple[Replay.State, str, int]:
    """Return the verdict, its message and the step of the checkpoint that decided it: the first that is the worst."""
    if reported.step < replay.end_step:
        message = f"the budget is used up at step {reported.step}, not at {replay.end_step}."
        return Replay.State.DIFFERED, message, replay.end_step
    expected = [row.step for row in (replay.first, replay.middle, replay.claimed) if row is not None]
    if reported.checks is None or [check.step for check in reported.checks] != expected:
        return Replay.State.ABANDONED, "the node did not compare whole checkpoints; it needs an update.", reported.step
    verdicts = [(*judge_check(check), check.step) for check in reported.checks]
    severity = (Replay.State.AGREED, Replay.State.ABANDONED, Replay.State.DIFFERED)
    worst = max(verdicts, key=lambda verdict: severity.index(verdict[0]))
    if worst[0] == Replay.State.AGREED and not reported.exact:
        worst = next(verdict for verdict, check in zip(verdicts, reported.checks, strict=True) if not check.exact)
    return worst


def judge_check(check: protocol.ReplayCheck) -> tuple[Replay.State, str]:
    if check.exact:
        return Replay.State.AGREED, "replayed to the last bit."
    figures = (
        f"the replay's step {check.step} is {check.deviation:.3g} of the way since its start and "
        f"{check.state_deviation:.3g} of the optimizer's state away"
    )
    if check.deviation <= AGREES and check.state_deviation <= STATE_AGREES:
        return Replay.State.AGREED, f"{figures}, which rounding on other hardware explains."
    if check.deviation >= DIFFERS or check.state_deviation >= STATE_DIFFERS:
        return Replay.State.DIFFERED, f"{figures}: the run's code and data do not give this result."
    return Replay.State.ABANDONED, f"{figures}: neither a match nor a mismatch. A maintainer has to decide."


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
            middle=None,
            first=None,
            claimed=None,
            finished_at=timezone.now(),
        )
        if is_finished:
            Event.record(actor, replay.run, f"Steps {replay.start_step} to {replay.end_step}: {message}")
    return is_finished
