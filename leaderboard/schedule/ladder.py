"""The ladder: the baseline's runs at every rung, a standing job of the track. Then the entries' further seeds.

The runs hang on the season's baseline and on the season, so a new season that pins another baseline, dataset or
environment begins with an empty ladder, and what was measured before stays where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, islice

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from leaderboard import runs
from leaderboard.models import Entry, Run, Track
from scheduler import storage
from scheduler.models import Blob, Job

WAITING_AT_ONCE = 3
"""Runs of a ladder that wait for a node at any time. As many as a busy pool takes between two looks, and few enough
that the departures stay readable."""
RETRY_AFTER = timedelta(hours=1)
"""How long a run rests that the infrastructure broke, so that a broken machine does not grind through one seed."""


@dataclass(frozen=True)
class LadderProgress:
    """How far a track's ladder is."""

    done: int
    """Judged runs of the baseline, at most as many of a rung as the ladder asks for."""
    wanted: int

    @property
    def is_full(self) -> bool:
        return self.done >= self.wanted


def list_missing_budgets(seeds: int, budgets: Iterable[str], there: Mapping[str, int]) -> Iterator[str]:
    """Yield the budget of each run that is lacking, in the order of `budgets`: smallest first, and the multiplier is
    alive early."""
    for budget in budgets:
        for _ in range(seeds - there.get(budget, 0)):
            yield budget


def iterate_free_seeds(used: Collection[int]) -> Iterator[int]:
    """Yield the seeds from 1 that are not used."""
    return (seed for seed in count(1) if seed not in used)


def count_baseline_runs(track: Track) -> dict[str, int]:
    """Return how many runs of the baseline there are at each budget in this season.

    In whatever state: one that the infrastructure broke goes on (`revive`), and what the model or a maintainer ended
    keeps its place, since another seed instead of it would be a choice made after looking.
    """
    rows = Run.objects.filter(entry=track.season.baseline_id, track=track, season=track.season_id).order_by()
    return dict(rows.values_list("budget").annotate(count=Count("pk")))


def get_ladder_progress(track: Track) -> LadderProgress:
    """Return how many runs of the ladder are judged. One query."""
    if not track.ladder or track.season.baseline_id is None:
        return LadderProgress(0, 0)
    rungs, seeds = track.rungs(), int(track.ladder["seeds"])
    rows = Run.objects.scored(track).filter(entry=track.season.baseline_id, budget__in=rungs).order_by()
    judged = dict(rows.values_list("budget").annotate(count=Count("pk")))
    return LadderProgress(sum(min(number, seeds) for number in judged.values()), len(rungs) * seeds)


def fill_ladders() -> int:
    """Keep every ladder of the present seasons filled; return how many runs this call queued."""
    return sum(fill_ladder(track) for track in Track.objects.with_ladder())


def fill_ladder(track: Track) -> int:
    """Queue what the ladder lacks, smallest rungs first; once it is full, the entries' further seeds."""
    release = storage.store_release()
    with transaction.atomic():
        Track.objects.select_for_update().get(pk=track.pk)  # two that fill at once would both find the same lacking
        retry_broken(track)
        room = max(WAITING_AT_ONCE - count_waiting(track), 0)
        lacking = list(list_missing_budgets(int(track.ladder["seeds"]), track.rungs(), count_baseline_runs(track)))
        if lacking or not get_ladder_progress(track).is_full:
            return sum(queue_baseline_run(track, release, budget) is not None for budget in lacking[:room])
        return sum(
            queue_another_seed(entry, track, release) for entry in islice(find_entries_lacking_seeds(track), room)
        )


def count_waiting(track: Track) -> int:
    """Return how many of our runs wait for a node."""
    jobs = {"job__state": Job.State.QUEUED, "job__priority": Job.Priority.LADDER}
    return Run.objects.filter(track=track, **jobs).count()


def retry_broken(track: Track) -> None:
    """Let runs of the ladder go on that the infrastructure broke: the same seed, from the last checkpoint."""
    rested = timezone.now() - RETRY_AFTER
    broken = Run.objects.failed().filter(track=track, season=track.season_id, entry=track.season.baseline_id)
    for run in broken.filter(cause="infrastructure", finished_at__lt=rested)[:WAITING_AT_ONCE]:
        runs.retry_run(run, actor=runs.SITE)


def queue_baseline_run(track: Track, release: Blob, budget: str = "") -> Run | None:
    """Queue a run of the baseline with the smallest seed (from 1) that it never had at this budget, by default the
    track's. Return None without a baseline."""
    baseline, budget = track.season.baseline, budget or track.budget
    if baseline is None:
        return None
    used = set(baseline.runs.filter(track=track, budget=budget).values_list("seed", flat=True))
    run = runs.make_run(baseline, track, seed=next(iterate_free_seeds(used)), budget=budget, purpose=Run.Purpose.LADDER)
    runs.queue_run(run, release=release)
    return run


def find_entries_lacking_seeds(track: Track) -> Iterator[Entry]:
    """Yield the entries whose first run arrived and that have fewer runs than the track gives, those with fewest first.

    None whose model failed or whose run somebody stopped: that is an answer too.
    """
    assert track.season.baseline_id is not None, "a filled ladder has a baseline"
    here = Q(runs__track=track, runs__season=track.season_id, runs__budget=track.budget)
    ended = Q(runs__state=Run.State.CANCELLED) | Q(runs__state=Run.State.FAILED)
    entries = (
        Entry.objects.approved()
        .exclude(pk=track.season.baseline_id)
        .exclude(kind=Entry.Kind.NOTEBOOK)
        .annotate(
            begun=Count("runs", filter=here),
            judged=Count("runs", filter=here & Q(runs__state=Run.State.FINISHED)),
            ended=Count("runs", filter=here & ended),
        )
        .filter(judged__gt=0, ended=0, begun__lt=track.seeds)
    )
    return iter(entries.order_by("begun", "pk"))


def queue_another_seed(entry: Entry, track: Track, release: Blob) -> bool:
    """Queue one more run of an entry, behind everything else."""
    return runs.queue_run(runs.make_run(entry, track), release=release, priority=Job.Priority.LADDER)
