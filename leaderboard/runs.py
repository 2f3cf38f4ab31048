"""Create, queue, retry, rewind and cancel runs, in one way for entries, nightly and ladder runs."""

from __future__ import annotations

import secrets
from typing import Any

from django.db import transaction
from django.db.models import F, Q

from leaderboard import caps, graphs, initial_weights, run_jobs, scoring_work
from leaderboard.models import Entry, Run, Season, TracedGraph, Track
from leaderboard.run_states import RunError, RunEvent, apply_event
from scheduler import checkpoints, failure_reports, storage, transitions
from scheduler.job_kinds import PoolTrack
from scheduler.models import SITE_ACTOR, Blob, Event, Job
from trainer import protocol
from trainer.accounting.budget import Budget

SEEDS = 2**31  # seeds are smaller, which every library's generator accepts
MIN_BUDGET_LEFT = 1e-3  # share of the budget that a rewind must leave


def draw_seed() -> int:
    """Return a seed that no user can choose or foresee."""
    return secrets.randbelow(SEEDS)


def draw_ladder_seed(entry: Entry, track: Track) -> int:
    """Return the seed of a scored ladder run that the entry has not used, with which it shares the order of the data.

    Without one, a new seed. Confirmation runs draw theirs anew, since authors can try the ladder's seeds at home.
    """
    ladder = Run.objects.scored(track).filter(entry=track.season.baseline_id, budget=track.budget)
    used = Run.objects.filter(entry=entry, track=track, budget=track.budget).values("seed")
    seeds = list(ladder.exclude(seed__in=used).values_list("seed", flat=True))
    return secrets.choice(seeds) if seeds else draw_seed()


def make_run(
    entry: Entry,
    track: Track,
    *,
    seed: int | None = None,
    budget: str = "",
    purpose: Run.Purpose = Run.Purpose.ENTRY,
    actor: str = SITE_ACTOR,
) -> Run:
    """Return the waiting run of an entry on a track. Defaults: a random seed, and the track's budget.

    Where runs that are behind stop, an entry's seeds are those of the ladder.
    """
    if seed is None:
        is_paired = track.stops_early and purpose == Run.Purpose.ENTRY and (budget or track.budget) == track.budget
        seed = draw_ladder_seed(entry, track) if is_paired else draw_seed()
    with transaction.atomic():
        run, created = Run.objects.get_or_create(
            entry=entry,
            track=track,
            seed=seed,
            budget=budget or track.budget,
            defaults={
                "season": track.season,
                "start_run": track.start_run,
                "start_checkpoint": track.start_checkpoint,
                "purpose": purpose,
                "reason": f"Waits for {name_approver(entry)} approval.",
            },
        )
        if created:
            Event.record(actor, run, f"Run of {entry.title} on {track.name} with seed {run.seed}.")
    return run


def name_approver(entry: Entry) -> str:
    is_manual = entry.track.approval == Track.Approval.MAINTAINER or entry.runs_python
    return "a maintainer's" if is_manual else "the policy's"


def queue_run(
    run: Run, *, actor: str = SITE_ACTOR, release: Blob | None = None, priority: Job.Priority | None = None
) -> bool:
    """Queue a waiting run of an approved entry, once; return whether this call did.

    Without a priority it has that of its purpose. The run waits until the season's dataset is prepared, the entry's
    smoke test is over and its graph is traced; then `queue_waiting` or the smoke test's handler calls this again.
    """
    entry = run.entry
    if entry.state != Entry.State.APPROVED:
        raise RunError(f"The entry is {entry.state}: only approved entries run.")
    if run.is_swarm and not entry.is_own_code:
        raise RunError(
            "The machines of a swarm run the site's own code only, and this entry brings code of its own: nothing was"
            " queued. Its architecture can run here once it is on main."
        )
    if run.track.followed_track_id is not None and run.release_id is None:
        raise RunError(f"{run.track} fine-tunes the releases of another track only: submit the entry to that one.")
    release = release or storage.store_release()
    with transaction.atomic():
        awaited = prepare_run(run, release)
        if run.graph is not None and run.graph.problem:
            fail_waiting_run(run, "model", run.graph.problem)
            return False
        if awaited:
            waiting = Run.objects.filter(pk=run.pk, state=Run.State.WAITING)
            waiting.update(reason=f"Approved; waits {awaited}.", graph=run.graph, revision=F("revision") + 1)
            return False
        run.refresh_from_db(fields=["state"], from_queryset=Run.objects.select_for_update(no_key=True))
        if run.state != Run.State.WAITING:
            return False
        job = Job(**run_jobs.build_train_job(run, release, priority))
        apply_event(run, RunEvent.QUEUE, actor=actor, message="Queued for training.", job=job, graph=run.graph)
    return True


def prepare_run(run: Run, release: Blob) -> str:
    """Request the run's graph if it trains one, and check its caps; return what the run still waits for, or ""."""
    if not run.season.is_prepared:
        return "until the season's dataset is prepared"
    if graphs.needs_graph(run):
        graphs.lock_season(run.season_id)
        run.graph = graphs.request_graph(run, run_jobs.get_configuration(run), release)
        request_baseline_graph(run.graph, release)
        if run.graph.is_pending:
            return "for the smoke test that traces it"
        if caps.needs_baseline_graph(run.graph):
            has_baseline = run.season.baseline_id is not None
            return "for the graph of the baseline" if has_baseline else "until the season has a baseline"
        graphs.check_caps(run.graph)  # they may have changed since it was traced
    smoke_job = run.entry.smoke_job
    is_in_smoke_test = smoke_job is not None and smoke_job.state not in transitions.FINAL_STATES
    return "for its smoke test" if is_in_smoke_test else ""


def request_baseline_graph(graph: TracedGraph, release: Blob) -> None:
    """Request the graph of the season's baseline at the same configuration, with which the graph is compared.

    Requires `graphs.lock_season`.
    """
    baseline = graph.season.baseline
    if baseline is None or baseline.pk == graph.entry_id:
        return
    budget = graph.config["budget"]
    twin = Run(entry=baseline, track=graph.track, season=graph.season, budget=budget, seed=0)
    if graphs.needs_graph(twin):
        graph.baseline_graph = graphs.request_graph(twin, run_jobs.get_configuration(twin), release)
        graph.save(update_fields=["baseline_graph"])


def fail_waiting_run(run: Run, cause: protocol.Cause, reason: str) -> None:
    """End a run that has not been queued."""
    fields = {"reason": reason[:500], "cause": cause, "graph": run.graph}
    apply_event(run, RunEvent.FAIL, actor=SITE_ACTOR, message=f"Failed: {reason}", **fields)


def queue_waiting(season: Season, *, actor: str = SITE_ACTOR) -> int:
    """Queue the approved runs that waited for the season's dataset or baseline; return their number.

    Entries whose smoke test failed still wait for a maintainer.
    """
    waiting = Run.objects.with_entry().filter(season=season, state=Run.State.WAITING, entry__state=Entry.State.APPROVED)
    has_failed = [run.pk for run in waiting if run.entry.smoke.get("passed") is False]
    return sum(queue_run(run, actor=actor) for run in waiting.exclude(pk__in=has_failed).order_by("pk"))


def recheck_queued(season: Season, *, actor: str = SITE_ACTOR) -> int:
    """Let queued runs wait again whose graphs do not fit the season's new caps or baseline; return their number.

    `queue_waiting` then requests what is missing, or fails them. Runs that a node has taken are left alone. Not for a
    transaction that has locked the season: jobs are locked first.
    """
    release, count = storage.store_release(), 0
    reason = "The season's caps or baseline changed: its graph is checked again."
    for run in Run.objects.filter(season=season, state=Run.State.QUEUED, graph__isnull=False).order_by("pk"):
        assert run.job_id is not None, "a queued run has a job"
        with transaction.atomic():
            job = Job.objects.select_for_update(no_key=True).get(pk=run.job_id)
            if job.state not in transitions.WAITING_STATES:
                continue
            graphs.lock_season(season.pk)
            graph = TracedGraph.objects.select_related("entry", "season__baseline", "track").get(runs=run)
            request_baseline_graph(graph, release)
            if caps.needs_baseline_graph(graph) or caps.describe_cap_violations(graph):
                apply_event(run, RunEvent.RECHECK, actor=actor, message=reason, reason=reason, job=None)
                count += 1
    return count


def list_pool_tracks() -> dict[str, PoolTrack]:
    """Return the tracks of the current season by slug (`settings.POOL_TRACKS`)."""
    rows = Track.objects.filter(season__active=True).in_order().values_list("slug", "name", "needs_labels")
    return {slug: PoolTrack(name, tuple(labels)) for slug, name, labels in rows}


def make_first_run(entry: Entry, *, budget: str = "", actor: str = SITE_ACTOR) -> Run:
    """Return the entry's first, waiting run, with this budget, else that of the track's trial, else the track's."""
    return make_run(entry, entry.track, budget=budget or entry.track.trial_budget, actor=actor)


def queue_whole_run(run: Run) -> None:
    """Queue the run with the whole budget after an entry's trial, unless there is one."""
    has_whole_run = run.entry.runs.filter(budget=run.track.budget).exists()
    if run.is_trial and run.entry.state == Entry.State.APPROVED and not has_whole_run:
        queue_run(make_run(run.entry, run.track))


def retry_run(run: Run, *, actor: str) -> None:
    """Continue a run that failed because of the infrastructure, with its seed, from its last checkpoint.

    A run that was trained but not scored is scored again. One whose graph was not traced waits for another trace.
    Raises RunError, and changes nothing, if it cannot go on.
    """
    if run.state != Run.State.FAILED or run.cause != "infrastructure":
        raise RunError("Only a run that failed because of the infrastructure goes on with its seed.")
    if run.entry.state != Entry.State.APPROVED:
        raise RunError(f"Its entry is {run.entry.state}: only runs of approved entries are retried.")
    with transaction.atomic():
        if run.job is None:
            graphs.lock_season(run.season_id)
            apply_event(run, RunEvent.TRACE_AGAIN, actor=actor, message="To be traced again.")
            queue_run(run, actor=actor)
        elif run.checkpoint_id is not None:
            job = build_score_job(run)
            apply_event(run, RunEvent.SCORE_AGAIN, actor=actor, message="To be scored again.", score_job=job)
        else:
            message = f"Queued again with seed {run.seed}; goes on from its last checkpoint."
            apply_event(run, RunEvent.TRAIN_AGAIN, actor=actor, message=message)
            if actor != SITE_ACTOR:  # a person's word: the site itself never sends a job to the same fault twice
                failure_reports.lift_exclusions(run.job, actor)


def let_go_on(run: Run, *, actor: str) -> None:
    """Queue a stopped run again, from its last checkpoint; nothing stops it again. Raises RunError."""
    message = f"{actor} lets it go on. It was stopped {run.describe_look()}"
    apply_event(run, RunEvent.GO_ON, actor=actor, message=message, goes_on=True)


def build_score_job(run: Run) -> Job:
    """Return the unsaved job that scores a trained run."""
    return Job(**run_jobs.build_score_job(run, scoring_work.get_suite(run)))


def resume_training(run: Run, reason: str) -> None:
    """Train a run again from the checkpoint before its last one, which turned out to be unusable.

    Requires the transaction that ends its score job.
    """
    dropped = run.checkpoint
    for replay in run.replays.filter(job__state__in=[Job.State.QUEUED, Job.State.LEASED]).select_related("job"):
        assert replay.job is not None
        transitions.cancel_job(replay.job, SITE_ACTOR, reason)
    message = f"{reason} It trains again from the checkpoint before."
    fields: dict[str, Any] = {"reason": message[:500], "checkpoint": None, "score_job": None, "trained_at": None}
    apply_event(run, RunEvent.DROP, actor=SITE_ACTOR, message=message, **fields)
    if dropped is not None:
        checkpoints.delete_files(dropped)


@transaction.atomic
def rerun(run: Run, *, actor: str) -> Run:
    """Return a new, queued run with the same entry, track and budget, and another seed.

    Raises RunError while a run of the entry with this budget is not over.
    """
    lock_season_and_entry(run.track.season_id, run.entry_id)
    if has_unfinished_run(run):
        raise RunError("A run of this entry with this budget is not finished: wait for its result first.")
    is_scheduled = run.purpose in (Run.Purpose.LADDER, Run.Purpose.MONTHLY)
    purpose = Run.Purpose(run.purpose) if is_scheduled else Run.Purpose.ENTRY
    again = make_run(run.entry, run.track, budget=run.budget, purpose=purpose, actor=actor)
    queue_run(again, actor=actor)
    return again


def has_unfinished_run(run: Run) -> bool:
    return Run.objects.filter(entry=run.entry_id, budget=run.budget, state__in=Run.UNFINISHED).exists()


def has_used_attempt(run: Run) -> bool:
    """Return whether a run of its entry with its budget counts. Then only a maintainer starts another."""
    attempts = Run.objects.filter(entry=run.entry_id, budget=run.budget)
    if run.entry.policy_approved_at is not None:  # it has the hours of one: cancelling early gives none back
        return attempts.filter(started_at__isnull=False).exclude(cause="infrastructure").exists()
    return attempts.filter(counts=True).exists()


def lock_season_and_entry(season_id: int, entry_id: int) -> None:
    """Lock a new run's season and entry, so that of concurrent requests one creates runs. Requires a transaction."""
    graphs.lock_season(season_id)
    Entry.objects.select_for_update(no_key=True).get(pk=entry_id)


def rewind_run(run: Run, step: int, *, actor: str) -> Run:
    """Return a new, queued run that continues from one of this run's checkpoints with the budget that was left.

    It restarts the optimizer and the schedule, and has no place on the board. Raises RunError while another rewind to
    the same checkpoint is not over.
    """
    with transaction.atomic():
        lock_season_and_entry(run.season_id, run.entry_id)
        try:
            checkpoint = initial_weights.get_checkpoint_at(run, step)
        except ValueError as error:
            raise RunError(str(error)) from error
        if refusal := run.explain_start_refusal(checkpoint):
            raise RunError(refusal)
        rewinds = Run.objects.filter(start_checkpoint=checkpoint, purpose=Run.Purpose.REWIND)
        if other := rewinds.filter(state__in=Run.UNFINISHED).first():
            raise RunError(f"Run {other.pk} starts from step {step} too. Wait until it is over.")
        used = get_used_fraction(run, step)
        if used > 1 - MIN_BUDGET_LEFT:
            raise RunError(f"At step {step} the budget of run {run.pk} is used up: nothing is left to go on with.")
        rewound = Run.objects.create(
            entry=run.entry,
            track=run.track,
            season=run.season,
            seed=draw_seed(),
            budget=str(Budget.parse(run.budget).times(1 - used)),
            purpose=Run.Purpose.REWIND,
            start_run=run,
            start_checkpoint=checkpoint,
        )
        Event.record(actor, rewound, f"Rewound run {run.pk} to step {step}: goes on from there with {rewound.budget}.")
        Event.record(actor, run, f"Rewound to step {step}: run {rewound.pk} goes on from there.")
        queue_run(rewound, actor=actor)
    return rewound


def list_rewind_steps(run: Run) -> list[int]:
    """Return the steps to which a run can be rewound, the last one first. Swarms store partial states only."""
    steps = [] if run.is_swarm else initial_weights.list_steps(run)
    return [step for step in steps if get_used_fraction(run, step) <= 1 - MIN_BUDGET_LEFT]


def get_used_fraction(run: Run, step: int) -> float:
    """Return the share of the budget that was used at a step; approximate for budgets in seconds."""
    return run.fraction * step / run.step if run.step else 0.0


@transaction.atomic
def queue_more_seeds(entry: Entry, count: int, *, actor: str) -> list[Run]:
    """Return `count` new, queued runs of an entry on its track, with random seeds."""
    more = [make_run(entry, entry.track, actor=actor) for _ in range(count)]
    for run in more:
        queue_run(run, actor=actor)
    return more


def update_job_impact(entry: Entry) -> int:
    """Copy the entry's impact to its unfinished jobs; return the number of changed jobs."""
    unfinished = Job.objects.filter(run__entry=entry).exclude(state__in=transitions.FINAL_STATES)
    return unfinished.exclude(impact=entry.impact).update(impact=entry.impact)


def lock_jobs(entry: Entry) -> None:
    """Lock the entry's unfinished jobs: before the season, as where a node ends one."""
    own = Q(run__entry=entry) | Q(scored_run__entry=entry) | Q(traced_graph__entry=entry)
    jobs = Job.objects.filter(own).exclude(state__in=transitions.FINAL_STATES).order_by("pk")
    list(jobs.select_for_update(of=("self",), no_key=True).values_list("pk"))


def cancel_run(run: Run, reason: str, actor: str) -> None:
    """Cancel a run that is not over. If a node works on it, it ends with the node's next heartbeat."""
    job = run.score_job if run.state == Run.State.SCORING else run.job
    with transaction.atomic():
        if job is not None and transitions.cancel_job(job, actor, reason):
            return
        run.refresh_from_db(fields=["state"])
        if not run.is_over:
            message = f"Cancelled: {reason}"
            apply_event(run, RunEvent.CANCEL, actor=actor, message=message, reason=reason[:500])
