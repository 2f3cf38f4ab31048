"""Making, queueing, repeating and cancelling runs. One way for contributors', nightly and ladder runs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from leaderboard import initial_weights, permissions
from leaderboard.models import Entry, Run, Season, Track
from leaderboard.rankings import trust
from leaderboard.schedule import track_hours
from scheduler import matching, storage, transitions
from scheduler.models import Blob, Event, Job
from trainer import protocol
from trainer.accounting.budget import Budget

SITE = "site"
SEEDS = 2**31
"""Seeds are drawn below this; small enough for every library's generator."""
CHECKPOINT_EVERY = "30s"
"""As `dailytrain train` has it where nothing else is said."""

SWARM_PROCESSES = 4096
"""As for a program of our own."""
MIN_BUDGET_LEFT = 1e-3
"""Of its budget a run must have before it at a checkpoint that one can go back to."""

SCORE_SECONDS = 120.0
"""Expected; only for the order of the queue."""
SCORE_WALL_SECONDS = 3600.0


class RunError(ValueError):
    """The run cannot be changed as asked; the message is a sentence for whoever asked."""


def draw_seed() -> int:
    """Return a seed that nobody could choose or foresee."""
    return secrets.randbelow(SEEDS)


def make_run(
    entry: Entry,
    track: Track,
    *,
    seed: int | None = None,
    budget: str = "",
    purpose: Run.Purpose = Run.Purpose.ENTRY,
    actor: str = SITE,
) -> Run:
    """Return the waiting run of an entry on a track; without a seed the server draws one, without a budget it has the
    track's."""
    with transaction.atomic():
        run, created = Run.objects.get_or_create(
            entry=entry,
            track=track,
            seed=draw_seed() if seed is None else seed,
            budget=budget or track.budget,
            defaults={
                "season": track.season,
                "start_run": track.start_run,
                "start_checkpoint": track.start_checkpoint,
                "purpose": purpose,
                "reason": "Waits for a maintainer's approval.",
            },
        )
        if created:
            Event.record(actor, run, f"Run of {entry.title} on {track.name} with seed {run.seed}.")
    return run


def queue_run(
    run: Run, *, actor: str = SITE, release: Blob | None = None, priority: Job.Priority | None = None
) -> bool:
    """Put a waiting run of an approved entry into the queue, once; return whether it is there now because of us.

    Without a priority it has that of its purpose. Until the season's dataset is prepared, and while the entry's smoke
    run is under way, the run goes on waiting and says so (`queue_waiting` and `smoking.let_go` come back to it).
    """
    entry = run.entry
    if entry.state != Entry.State.APPROVED:
        raise RunError(f"The entry is {entry.state}: only approved entries run.")
    if run.is_swarm and not is_own_code(entry):
        raise RunError(
            "The machines of a swarm run the site's own code only, and this entry brings code of its own: nothing was"
            " queued. Its architecture can run here once it is on main."
        )
    if not run.season.is_prepared:
        Run.objects.filter(pk=run.pk, state=Run.State.WAITING).update(
            reason="Approved; waits until the season's dataset is prepared.", revision=F("revision") + 1
        )
        return False
    if entry.smoke_job is not None and entry.smoke_job.state not in transitions.FINAL_STATES:
        Run.objects.filter(pk=run.pk, state=Run.State.WAITING).update(
            reason="Approved; waits for its smoke run.", revision=F("revision") + 1
        )
        return False
    release = release or storage.store_release()
    with transaction.atomic():
        if not run.change(
            Run.State.QUEUED, since=[Run.State.WAITING], actor=actor, sentence="Queued for training.", reason=""
        ):
            return False
        job = build_train_job(run, release)
        run.job = Job.objects.create(**job if priority is None else {**job, "priority": priority})
        run.save(update_fields=["job"])
    return True


def queue_waiting(season: Season, *, actor: str = SITE) -> int:
    """Queue the approved runs that waited for the season's dataset; return how many."""
    waiting = Run.objects.with_entry().filter(season=season, state=Run.State.WAITING, entry__state=Entry.State.APPROVED)
    failed = [run.pk for run in waiting if run.entry.smoke.get("passed") is False]  # a maintainer's word is wanted
    return sum(queue_run(run, actor=actor) for run in waiting.exclude(pk__in=failed).order_by("pk"))


def get_track_names() -> dict[str, str]:
    """Return the tracks' slugs, which are what jobs carry, with their names."""
    return dict(Track.objects.in_order().values_list("slug", "name"))


def build_train_job(run: Run, release: Blob | None) -> dict[str, Any]:
    """Return the fields of its job; without a release, of one that is only thought of."""
    limits = run.track.training_limits(run.part)
    return {
        "kind": "notebook" if is_notebook(run) else "train",
        "priority": get_priority(run),
        "impact": run.entry.impact,
        "expected_seconds": run.expected_seconds,
        "author": run.entry.author,
        "needs_sandbox": needs_sandbox(run),
        "checkpoint_seconds": run.expected_seconds if is_notebook(run) else get_checkpoint_seconds(run),
        "preemptible": run.track.kind == Track.Kind.PLAYGROUND or run.purpose == Run.Purpose.MONTHLY,
        **get_needs(run, limits),
        **track_hours.get_job_columns(run),
        "release": release,
        "entry": run.entry.bundle,
        "limits": limits.model_dump(),
        **(trust.build_unrelated_constraints(run.entry) if run.purpose == Run.Purpose.CONFIRMATION else {}),
        **(build_coordinator_fields(run, limits) if run.is_swarm else {}),
    }


def build_coordinator_fields(run: Run, limits: protocol.JobLimits) -> dict[str, Any]:
    """Return what is different about the job that leads a swarm: on a trusted node, of any hardware, and no code but
    the site's."""
    return {
        **get_scoring_needs(run, limits),
        "kind": "swarm",
        "needs_trusted": True,
        "needs_sandbox": False,
        "entry": None,
        "needs_gpus": 0,
        "needs_gpu_memory_bytes": 0,
        "limits": get_swarm_limits(limits).model_dump(),
    }


def get_swarm_limits(limits: protocol.JobLimits) -> protocol.JobLimits:
    """Return what one process of a swarm may use: the daemon that carries its connections has many threads."""
    return limits.model_copy(update={"processes": max(limits.processes, SWARM_PROCESSES)})


def get_needs(run: Run, limits: protocol.JobLimits) -> dict[str, Any]:
    """Return what a training job asks of a node, and by what its owner may choose. Numbers in labels become numbers."""
    track = run.track
    asked = matching.parse_labels(tuple(track.needs_labels))
    return {
        "track": track.slug,
        "from_core": is_from_core(run),
        "needs_labels": list(asked.names),
        "needs_gpus": asked.gpus,
        "needs_gpu_memory_bytes": asked.gpu_memory_bytes,
        "needs_memory_bytes": track.needs_memory_bytes,
        "needs_disk_bytes": max(limits.disk_bytes, asked.disk_bytes),
    }


def is_from_core(run: Run) -> bool:
    """Whether a core member asked for it, or the site itself: what nodes train that are lent to the core alone."""
    if run.purpose != Run.Purpose.ENTRY or run.entry.kind == Entry.Kind.MAIN:
        return True
    return is_core(run.entry)


def is_core(entry: Entry) -> bool:
    """Whether a core member asked for the entry."""
    asked_by = entry.requested_by
    return asked_by is not None and permissions.is_core(asked_by)


def get_checkpoint_seconds(run: Run) -> float:
    """Return the seconds between two of its checkpoints; 0 where that cannot be told beforehand."""
    try:
        every = Budget.parse(str(get_configuration(run).get("checkpoint_every", CHECKPOINT_EVERY)))
    except ValueError:  # its node refuses it with a sentence
        return 0.0
    if every.kind == "seconds":
        return every.amount
    return (every.share_of(Budget.parse(run.budget)) or 0.0) * run.expected_seconds


def merge_configs(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return one configuration of several: later ones win, table by table."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = result.get(name)
            result[name] = (
                merge_configs(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
            )
    return result


def get_configuration(run: Run) -> dict[str, Any]:
    """Return what the node is told to train: the track's part, the entry's, a trial's, then what only the site sets."""
    site = {"arch": run.entry.architecture, "budget": run.budget, "seed": run.seed}
    trial = run.track.trial.get("config", {}) if run.is_trial else {}
    return merge_configs(run.track.config, run.entry.config, trial, site)


def is_notebook(run: Run) -> bool:
    """Whether it runs a notebook, which keeps no checkpoint of ours and is not scored."""
    return run.entry.kind == Entry.Kind.NOTEBOOK


def is_own_code(entry: Entry) -> bool:
    """Whether it brings nothing that is not on main."""
    return entry.kind == Entry.Kind.MAIN or (bool(entry.base_sha) and not entry.changed_files)


def needs_sandbox(run: Run) -> bool:
    """Whether the code is a stranger's; `main` was reviewed, so a node without a sandbox may run it too. A swarm's runs
    have no code but the site's."""
    return run.entry.kind != Entry.Kind.MAIN and not run.is_swarm


def get_priority(run: Run) -> Job.Priority:
    if run.purpose == Run.Purpose.NIGHTLY:
        return Job.Priority.NIGHTLY
    if run.purpose == Run.Purpose.CONFIRMATION:
        return Job.Priority.CONFIRMATION
    if run.purpose == Run.Purpose.LADDER:
        return Job.Priority.LADDER
    if run.purpose == Run.Purpose.REWIND:
        return Job.Priority.MAINTAINER  # who asked for it
    if run.purpose == Run.Purpose.MONTHLY:
        return Job.Priority.MAINTAINER  # it takes days: nights and confirmations go before it, until age lifts it
    asked_by = run.entry.requested_by
    if run.track.kind == Track.Kind.PLAYGROUND:
        return Job.Priority.COMMUNITY  # whoever plays
    return Job.Priority.MAINTAINER if asked_by and permissions.is_maintainer(asked_by) else Job.Priority.COMMUNITY


def make_first_run(entry: Entry, *, budget: str = "", actor: str = SITE) -> Run:
    """Return the waiting run with which an entry begins: of the budget it was given, or its track's trial, if any."""
    return make_run(entry, entry.track, budget=budget or entry.track.trial_budget, actor=actor)


def queue_whole_run(run: Run) -> Run | None:
    """Queue the whole run of an entry whose trial has arrived, unless it had one; return it."""
    if not run.is_trial or run.entry.runs.filter(budget=run.track.budget).exists():
        return None
    if run.entry.state != Entry.State.APPROVED:
        return None
    whole = make_run(run.entry, run.track)
    queue_run(whole)
    return whole


def queue_score(run: Run) -> bool:
    """Give a trained run its score job, once; return whether this call did."""
    with transaction.atomic():
        job = Job.objects.create(**build_score_job(run))
        ours = Run.objects.unscored().filter(pk=run.pk).update(score_job=job, revision=F("revision") + 1)
        if ours:
            Event.record(SITE, run, "Queued for scoring on a trusted node.")
        else:
            job.delete()
    run.refresh_from_db(fields=["score_job", "revision"])
    return ours == 1


def build_score_job(run: Run) -> dict[str, Any]:
    """Return the fields of a job that scores a run's weights, or those of one of its releases."""
    assert run.job is not None, "what has weights has a job"
    limits = run.track.training_limits().model_copy(update={"wall_seconds": SCORE_WALL_SECONDS})
    return {
        "kind": "score",
        "priority": Job.Priority.SCORE,
        "expected_seconds": SCORE_SECONDS,
        "author": run.entry.author,
        "needs_trusted": True,
        **get_scoring_needs(run, limits),
        "needs_sandbox": needs_sandbox(run),
        "release": run.job.release,
        "entry": None if run.is_swarm else run.entry.bundle,
        "limits": limits.model_dump(),
    }


def get_scoring_needs(run: Run, limits: protocol.JobLimits) -> dict[str, Any]:
    """Return what scoring asks of a node: as training, but any machine, and of several GPUs one."""
    asked = get_needs(run, limits)
    return {**asked, "needs_labels": [], "needs_gpus": min(asked["needs_gpus"], 1)}


def retry_run(run: Run, *, actor: str) -> None:
    """Let a run that failed through no fault of its model go on, with the same seed, from its last checkpoint.

    A run that was trained and could not be scored is scored again. A model's own failure stands: it counts.
    """
    if run.state != Run.State.FAILED or run.cause != "infrastructure":
        raise RunError("Only a run that failed because of the infrastructure goes on with its seed.")
    assert run.job is not None, "a failed run had a job"
    if run.checkpoint_id is not None:
        with transaction.atomic():
            if run.change(
                Run.State.SCORING,
                since=[Run.State.FAILED],
                actor=actor,
                sentence="To be scored again.",
                reason="",
                cause="",
                score_job=None,
                finished_at=None,
            ):
                queue_score(run)
        return
    with transaction.atomic():
        if run.change(
            Run.State.QUEUED,
            since=[Run.State.FAILED],
            actor=actor,
            sentence=f"Queued again with seed {run.seed}; goes on from its last checkpoint.",
            reason="",
            cause="",
            finished_at=None,
        ):
            transitions.retry_job(run.job, actor)


def rerun(run: Run, *, actor: str) -> Run:
    """Return a new, queued run of the same entry on the same track, of the same budget, with a seed of its own."""
    kept = (Run.Purpose.LADDER, Run.Purpose.MONTHLY)
    purpose = Run.Purpose(run.purpose) if run.purpose in kept else Run.Purpose.ENTRY
    again = make_run(run.entry, run.track, budget=run.budget, purpose=purpose, actor=actor)
    queue_run(again, actor=actor)
    return again


def rewind_run(run: Run, step: int, *, actor: str) -> Run:
    """Return a new, queued run of the same entry that goes on from one of this run's kept checkpoints.

    It has what was left of the budget there, momenta and a schedule of its own, and no place on the board: it is the
    second part of a training whose first part is another run's.
    """
    with transaction.atomic():
        try:
            checkpoint = initial_weights.get_checkpoint_at(run, step)
        except ValueError as error:
            raise RunError(str(error)) from error
        if refusal := initial_weights.explain_refusal(run, checkpoint):
            raise RunError(refusal)
        made = Run.objects.create(
            entry=run.entry,
            track=run.track,
            season=run.season,
            seed=draw_seed(),
            budget=get_budget_left(run, step),
            purpose=Run.Purpose.REWIND,
            start_run=run,
            start_checkpoint=checkpoint,
        )
        Event.record(actor, made, f"Rewound run {run.pk} to step {step}: goes on from there with {made.budget}.")
        Event.record(actor, run, f"Rewound to step {step}: run {made.pk} goes on from there.")
        queue_run(made, actor=actor)
    return made


def list_rewind_steps(run: Run) -> list[int]:
    """Return the steps of a run that one can go back to, the last one first. On its way a swarm keeps its stages'
    states, which nothing else goes on from."""
    if run.is_swarm:
        return []
    return [step for step in initial_weights.list_steps(run) if get_used_fraction(run, step) <= 1 - MIN_BUDGET_LEFT]


def get_used_fraction(run: Run, step: int) -> float:
    """Return how much of a run's budget was used at a step: exact for steps, tokens and FLOPs, about right for
    seconds."""
    return run.fraction * step / run.step if run.step else 0.0


def get_budget_left(run: Run, step: int) -> str:
    """Return what was left of a run's budget at a step."""
    used = get_used_fraction(run, step)
    if used > 1 - MIN_BUDGET_LEFT:
        raise RunError(f"At step {step} the budget of run {run.pk} is used up: nothing is left to go on with.")
    return str(Budget.parse(run.budget).times(1 - used))


def queue_more_seeds(entry: Entry, count: int, *, actor: str) -> list[Run]:
    """Return `count` further, queued runs of an entry on its track, with seeds that the server draws."""
    with transaction.atomic():
        more = [make_run(entry, entry.track, actor=actor) for _ in range(count)]
        for run in more:
            queue_run(run, actor=actor)
    return more


def update_job_impact(entry: Entry) -> int:
    """Let the entry's impact hold for its jobs that are not over; return how many changed place."""
    theirs = Job.objects.filter(run__entry=entry).exclude(state__in=transitions.FINAL_STATES)
    return theirs.exclude(impact=entry.impact).update(impact=entry.impact)


def cancel_run(run: Run, reason: str, actor: str) -> None:
    """Stop a run that is not over. One that a node works on ends when the node has heard of it."""
    job = run.score_job if run.state == Run.State.SCORING else run.job
    if job is None:
        run.change(
            Run.State.CANCELLED,
            since=[Run.State.WAITING, Run.State.SCORING],
            actor=actor,
            sentence=f"Cancelled: {reason}",
            reason=reason[:500],
            finished_at=timezone.now(),
        )
        return
    transitions.cancel_job(job, actor, reason)
