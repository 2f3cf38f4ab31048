"""Stops entries' runs that are behind: at 1/8, 1/4 and 1/2 of the budget, where they cannot end above the baseline.

A run is compared with the ladder run of its seed, by the dev losses that their nodes reported at the same part of the
budget; `trainer.scoring.multiplier.futility` decides. What it found is stored on the run. A run that is behind goes on
until its node hands it back; `job_handlers.train` then stops it. Never for success.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from leaderboard.models import CurvePoint, Entry, Run, Track
from leaderboard.rankings.standings import compute_standings
from leaderboard.schedule.failures import isolate_track
from leaderboard.submissions.families import list_changed_settings, name_groups
from scheduler import transitions
from scheduler.models import SITE_ACTOR, Job, Lease
from trainer.scoring.multiplier import Ladder, futility


def stop_runs_behind() -> int:
    """Compare the runs that have reached a look; return how many are to stop. No track stops another."""
    count = 0
    for track in Track.objects.filter(stops_early=True, season__active=True).select_related("season"):
        with isolate_track(track, "Early stops"):
            count += stop_runs_on(track)
    return count


def stop_runs_on(track: Track) -> int:
    due = list(find_due_runs(track).select_related("track__season", "graph__baseline_graph"))
    standings = compute_standings(track, entries=()) if due else None
    if standings is None or standings.comparison is None:
        return 0
    twins = {run.seed: run.run for run in standings.ladder_runs if run.budget == track.budget}
    ladder = standings.comparison.ladder
    return sum(judge_run(run, twins[run.seed], ladder) for run in due if run.seed in twins)


def find_due_runs(track: Track) -> QuerySet[Run]:
    """Return the runs in training that have passed a look since they were last compared, and have a ladder run.

    Their losses, and the ladder run's, come from trusted nodes alone: no replay compares them, so others could end a
    run.
    """
    is_due = Q()
    for look in futility.LOOKS:
        is_due |= Q(fraction__gte=look) & (Q(look_fraction=None) | Q(look_fraction__lt=look))
    untrusted = Exists(Lease.objects.filter(job__run=OuterRef("pk"), node__trusted=False))
    twins = Run.objects.filter(track=track, season=track.season_id, entry=track.season.baseline_id, budget=track.budget)
    twins = twins.filter(~untrusted, seed=OuterRef("seed"), bits_per_byte__isnull=False)
    own = Run.objects.filter(is_due, ~untrusted, Exists(twins), track=track, season=track.season_id)
    own = own.filter(purpose=Run.Purpose.ENTRY, state=Run.State.TRAINING, is_behind=False, goes_on=False)
    own = own.filter(budget=track.budget, graph__isnull=False, entry__kind=Entry.Kind.ARCHITECTURE)
    return own.exclude(entry=track.season.baseline_id).order_by("pk")


def judge_run(run: Run, twin: int, ladder: Ladder) -> bool:
    """Store the run's comparison with a ladder run at the last look that both have; return whether it is to stop."""
    losses, baseline = load_losses(run.pk, ladder.full), load_losses(twin, ladder.full)
    fraction = max((look for look in losses if look in baseline), default=0.0)
    if fraction <= (run.look_fraction or 0.0):
        return False
    look = futility.compare_at_look(
        ladder, fraction, losses[fraction], baseline[fraction], same_recipe=has_same_recipe(run)
    )
    return look is not None and store_look(run, fraction, look)


def load_losses(run: int, full: float) -> dict[float, futility.DevLoss]:
    """Return a run's dev losses at the looks. A look without an evaluation is missing."""
    rows = CurvePoint.objects.filter(run=run, series=CurvePoint.Series.DEV)
    points = rows.order_by("step").values_list("flops", "bits_per_byte")
    return futility.select_looks([futility.DevLoss(flops, bits) for flops, bits in points if bits is not None], full)


def has_same_recipe(run: Run) -> bool:
    """Whether rates, schedule and batch are the baseline's, so that the two curves have the same shape."""
    own, other = run.graph, run.graph.baseline_graph if run.graph else None
    if (
        own is None
        or other is None
        or other.entry_id != run.track.season.baseline_id
        or not (own.summary.get("recipe") and other.summary.get("recipe"))
    ):
        return False  # graphs of older nodes have no recipe, and the baseline may have changed
    changed = list_changed_settings(name_groups(own.summary["recipe"]), name_groups(other.summary["recipe"]))
    return not changed and own.config.get("train") == other.config.get("train")


@transaction.atomic
def store_look(run: Run, fraction: float, look: futility.Look) -> bool:
    """Store what was found, and ask the node to hand back a run that is behind; return whether this call did."""
    assert run.job_id is not None, "a run in training has a job"
    job = Job.objects.select_for_update(no_key=True).get(pk=run.job_id)  # its run changes with it only
    rows = Run.objects.filter(pk=run.pk, state=Run.State.TRAINING, goes_on=False, is_behind=False)
    if not rows.exists():
        return False
    found = {"look_fraction": fraction, "look_behind": look.behind, "look_error": look.error}
    rows.update(**found, is_behind=look.is_futile, revision=F("revision") + 1)
    run.refresh_from_db(fields=[*found])
    return look.is_futile and transitions.request_hand_back(job, SITE_ACTOR, f"Stopped {run.describe_look()}")
