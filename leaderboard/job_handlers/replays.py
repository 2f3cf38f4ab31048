"""Spot checks: a random stretch of a run is trained again on a trusted node, and compared with what was uploaded.

The stretch is drawn uniformly from all stretches of the nodes that are due, by a rank that only the server can compute
(`scheduler.checkpoints.draw_rank`); the one from the first weights to the first checkpoint is among them. While a run
trains, the server keeps the files of one stretch for each node, the one that would be drawn if the run ended now. One
false stretch of k is found with probability 1 / k: not the single check but BOINC's rule (`scheduler.node_vetting`)
makes lying a losing game.

Budgets in steps, tokens and FLOPs depend on no clock; where the budget is in seconds, the replay takes what each step
was charged from the claimed checkpoint, so that the schedule is the same.

Not covered: runs on several devices, which stay provisional on a new node; the optimizer's half of a checkpoint; a
stretch that several nodes shared counts for the one that ended it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from leaderboard import initial_weights, runs
from leaderboard.job_handlers import sponsor_outcomes
from leaderboard.models import Replay, Run
from leaderboard.rankings import trust
from leaderboard.sanitize import plain_text
from scheduler import checkpoints, node_vetting
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Checkpoint, Event, Job, Lease, Node
from trainer import protocol

AGREES = 0.1
DIFFERS = 0.3
"""Of the distance that the weights moved in the stretch. Measured on stretches of 50 to 150 steps of a small `gpt`: the
same machine 0; fp32 rounded elsewhere under 0.01; gradients with bf16's noise up to 0.09; a fifth more steps than were
told 0.3, half as many again 0.6, other data 1.2. In between nobody can say, and a maintainer looks."""


class ReplayError(ValueError):
    """The run cannot be replayed; the message is a sentence for whoever asked."""


@dataclass(frozen=True)
class Stretch:
    start: Checkpoint | None
    """None: the first weights."""
    end: Checkpoint

    @property
    def node(self) -> Node | None:
        return self.end.lease.node if self.end.lease else None


def list_stretches(run: Run) -> list[Stretch]:
    """Return the run's stretches between neighboring checkpoints, the first weights to the first one included.

    Only those whose checkpoints have their files; none where they cannot be trained again.
    """
    devices = runs.get_configuration(run).get("devices")
    if run.is_swarm or devices not in (None, 1):
        return []
    ends = list(Checkpoint.objects.filter(job=run.job_id).select_related("lease__node").order_by("step"))
    pairs = [
        Stretch(start, end)
        for start, end in zip([None, *ends], ends, strict=False)
        if end.step > 0 and end.files_deleted_at is None and (start is None or start.files_deleted_at is None)
    ]
    # Where the configuration leaves it open, a lane of several GPUs puts them all to work.
    return [pair for pair in pairs if devices == 1 or pair.end.lease is None or pair.end.lease.gpus < 2]


def draw_replay(run: Run) -> Replay | None:
    """Draw whether this training is checked, and queue the replay. Bring the transaction that ends the training."""
    assert run.job is not None, "a trained run has a job"
    due = {node.pk for node in trust.find_training_nodes(run.job) if node_vetting.draw_check(node)}
    drawable = [stretch for stretch in list_stretches(run) if stretch.node and stretch.node.pk in due]
    if not drawable:
        return None
    return queue_replay(run, min(drawable, key=lambda stretch: checkpoints.draw_rank(stretch.end)), actor=runs.SITE)


def request_replay(run: Run, *, actor: str) -> Replay:
    """Replay one of the stretches that are kept because a maintainer asks. Raise ReplayError if there is none."""
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
    Event.record(actor, run, f"Steps {first} to {stretch.end.step} are to be trained again on another, trusted node.")
    return replay


def build_replay_job(run: Run, stretch: Stretch, first: int) -> dict[str, object]:
    """Return the job, which nodes of the people concerned may not do."""
    assert run.job is not None
    node = stretch.node
    people = {node.owner_id if node else None, run.entry.requested_by_id} - {None}
    steps = max(run.step, stretch.end.step, 1)
    return {
        **runs.build_train_job(run, run.job.release),
        "kind": "replay",
        "checkpoint_seconds": 0.0,  # it leaves none
        "preemptible": False,
        "priority": Job.Priority.CONFIRMATION,
        "expected_seconds": max(run.track.expected_seconds * (stretch.end.step - first) / steps, 1.0),
        "needs_trusted": True,
        "excluded_nodes": [node.pk] if node else [],
        "excluded_owners": sorted(people),  # type: ignore[type-var]
    }


# --- what came of it -------------------------------------------------------------------------------------------------


class ReplayHandler(JobKind):
    """Jobs of kind `replay`."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.ReplayOrder:
        replay = Replay.objects.select_related("run__entry", "run__track", "run__season").get(job=job)
        assert replay.claimed is not None, "it is kept until the replay is over"
        start = protocol.Checkpoint.model_validate(replay.start.manifest) if replay.start else None
        return protocol.ReplayOrder(
            dataset=replay.run.season.dataset(),
            config=runs.get_configuration(replay.run),
            start=start,
            base=initial_weights.get_initial_weights(replay.run),
            claimed=protocol.Checkpoint.model_validate(replay.claimed.manifest),
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        replay = Replay.objects.select_related("run").get(job=job)
        sentence = f"Steps {replay.start_step} to {replay.end_step} are trained again on {lease.node.name}."
        Event.record(f"node:{lease.node.name}", replay.run, sentence)

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, object]]) -> None:
        """Nothing: a replay has no curve."""

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: a replay leaves no checkpoint."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        """Nothing: another node begins it anew."""

    def handle_done(self, job: Job, result: dict[str, object]) -> None:
        replay = Replay.objects.select_related("run", "node").get(job=job)
        lease = job.leases.select_related("node").last()
        try:
            found = protocol.ReplayResult.model_validate(result)
        except ValidationError:
            abandon_replay(replay, "the answer cannot be right")
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
        return sponsor_outcomes.summarize_replays(jobs)


def apply_comparison(replay: Replay, found: protocol.ReplayResult, where: str) -> None:
    """Let the comparison count: for the node that trained, and for the run."""
    state, sentence = judge_comparison(replay, found)
    actor = f"node:{where}"
    if not finish_replay(replay, state, f"{sentence} (on {where})", actor, deviation=found.deviation):
        return
    if state == Replay.State.ABANDONED:
        return
    valid = state == Replay.State.AGREED
    if replay.node is not None and replay.job is not None:
        about = f"Steps {replay.start_step} to {replay.end_step} of run {replay.run_id}: {sentence}"
        node_vetting.record_verdict(replay.node, replay.job, valid, about, actor=actor)
    if valid:
        trust.mark_scored(replay.run)
    else:
        trust.transition_trust(replay.run, Run.Trust.DISPUTED, actor=actor, sentence=f"Disputed: {sentence}")


def judge_comparison(replay: Replay, found: protocol.ReplayResult) -> tuple[Replay.State, str]:
    """Return what the comparison means, and a sentence."""
    if found.step < replay.end_step:
        return Replay.State.DIFFERED, f"the budget is used up at step {found.step}, not at {replay.end_step}."
    if found.exact:
        return Replay.State.AGREED, "replayed to the last bit."
    apart = f"the replay ended {found.deviation:.3g} of the stretch's length away"
    if found.deviation <= AGREES:
        return Replay.State.AGREED, f"{apart}, as rounding on another machine may make it."
    if found.deviation >= DIFFERS:
        return Replay.State.DIFFERED, f"{apart}: this is not what the run's code and data make of it."
    return Replay.State.ABANDONED, f"{apart}: too much for rounding, too little for a lie; a maintainer has to look."


def abandon_replay(replay: Replay, reason: str) -> None:
    reason = plain_text(reason, 300).rstrip(".")
    finish_replay(replay, Replay.State.ABANDONED, f"could not be replayed: {reason}.", runs.SITE)


def finish_replay(
    replay: Replay, state: Replay.State, sentence: str, actor: str, *, deviation: float | None = None
) -> bool:
    """End a replay, once; its checkpoints may be forgotten from now on."""
    with transaction.atomic():
        ended = Replay.objects.filter(pk=replay.pk, state=Replay.State.WAITING).update(
            state=state,
            sentence=sentence[:500],
            deviation=deviation,
            start=None,
            claimed=None,
            finished_at=timezone.now(),
        )
        if ended:
            Event.record(actor, replay.run, f"Steps {replay.start_step} to {replay.end_step}: {sentence}")
    replay.refresh_from_db()
    return ended == 1
