"""The ladder: the baseline's runs at every rung, then further seeds of the entries.

The runs belong to the season and its baseline, so each new season starts with an empty ladder.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from django.db import transaction
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from leaderboard import runs
from leaderboard.models import Entry, Run, Standing, Track
from leaderboard.models.standings import UNDECIDED
from leaderboard.run_states import RunError
from leaderboard.schedule.failures import isolate_track
from leaderboard.submissions import policy
from scheduler import storage
from scheduler.models import SITE_ACTOR, Blob, Job

logger = logging.getLogger(__name__)

WAITING_AT_ONCE = 3
"""Ladder runs in the queue at a time: few enough to keep the queue page readable."""
RETRY_AFTER = timedelta(hours=1)
"""Delay before a run that infrastructure failed is retried, so that one broken machine does not fail it again."""


@dataclass(frozen=True)
class LadderProgress:
    done: int
    """Scored runs of the baseline, at most `seeds` of each rung."""
    wanted: int

    @property
    def is_full(self) -> bool:
        return self.done >= self.wanted


def list_missing_budgets(seeds: int, budgets: Iterable[str], there: Mapping[str, int]) -> Iterator[str]:
    """Yield the budget of each missing run, in the order of `budgets`. Smallest first gives a multiplier early."""
    for budget in budgets:
        for _ in range(seeds - there.get(budget, 0)):
            yield budget


def iterate_free_seeds(used: Collection[int]) -> Iterator[int]:
    """Yield the seeds from 1 that are not used."""
    return (seed for seed in count(1) if seed not in used)


def count_baseline_runs(track: Track) -> dict[str, int]:
    """Return the number of the baseline's runs at each budget in this season, in any state.

    Failed runs count too: another seed in their place would bias the ladder.
    """
    rows = Run.objects.filter(entry=track.season.baseline_id, track=track, season=track.season_id).order_by()
    return dict(rows.values_list("budget").annotate(count=Count("pk")))


def get_ladder_progress(track: Track) -> LadderProgress:
    """One query."""
    if not track.ladder or track.season.baseline_id is None:
        return LadderProgress(0, 0)
    rungs, seeds = track.rungs(), int(track.ladder["seeds"])
    rows = Run.objects.scored(track).filter(entry=track.season.baseline_id, budget__in=rungs).order_by()
    scored = dict(rows.values_list("budget").annotate(count=Count("pk")))
    return LadderProgress(sum(min(number, seeds) for number in scored.values()), len(rungs) * seeds)


def list_missing_rungs(track: Track) -> list[str]:
    """Return the budget of each ladder run that does not exist yet."""
    return list(list_missing_budgets(int(track.ladder["seeds"]), track.rungs(), count_baseline_runs(track)))


def is_filling(track: Track) -> bool:
    """Return whether the ladder has work: runs that are missing, or that are not finished."""
    if not track.ladder:
        return False
    unfinished = Run.objects.filter(entry=track.season.baseline_id, track=track, season=track.season_id)
    in_ladder = unfinished.filter(state__in=Run.UNFINISHED, budget__in=track.rungs(), purpose=Run.Purpose.LADDER)
    return bool(list_missing_rungs(track)) or (not get_ladder_progress(track).is_full and in_ladder.exists())


def get_unfinished_seed(track: Track) -> Run | None:
    """Return the oldest unfinished seed of the baseline at the whole budget."""
    seeds = Run.objects.filter(entry=track.season.baseline_id, track=track, budget=track.budget)
    return seeds.filter(purpose=Run.Purpose.LADDER, state__in=Run.UNFINISHED).order_by("pk").first()


def fill_ladders() -> int:
    """Fill all ladders of current seasons; return how many runs this call queued. No track stops another."""
    count = 0
    for track in Track.objects.with_ladder():
        with isolate_track(track, "Ladder"):
            count += fill_ladder(track)
    return count


def fill_ladder(track: Track) -> int:
    """Queue missing ladder runs, smallest rungs first; once the ladder is full, further seeds of entries."""
    if track.season.baseline is None or track.season.baseline.state != Entry.State.APPROVED:
        return 0  # a maintainer has to choose another one
    release = storage.store_release()
    with transaction.atomic():
        Track.objects.select_for_update(no_key=True).get(pk=track.pk)  # concurrent calls would queue the same runs
        retry_broken(track)
        room = max(WAITING_AT_ONCE - count_waiting(track), 0)
        missing = list_missing_rungs(track)
        if missing or not get_ladder_progress(track).is_full:
            return sum(queue_baseline_run(track, release, budget) is not None for budget in missing[:room])
        return sum(queue_further_seed(entry, track, release) for entry in find_entries_lacking_seeds(track)[:room])


def count_waiting(track: Track) -> int:
    queued = Q(job__state=Job.State.QUEUED, job__priority=Job.Priority.LADDER) & ~Q(purpose=Run.Purpose.MONTHLY)
    return Run.objects.filter(queued | Q(state=Run.State.WAITING, purpose=Run.Purpose.LADDER), track=track).count()


def retry_broken(track: Track) -> None:
    """Retry ladder runs that infrastructure failed: the same seed, from the last checkpoint."""
    failed_before = timezone.now() - RETRY_AFTER
    broken = Run.objects.failed().filter(track=track, season=track.season_id, entry=track.season.baseline_id)
    for run in broken.filter(cause="infrastructure", finished_at__lt=failed_before)[:WAITING_AT_ONCE]:
        try:
            runs.retry_run(run, actor=SITE_ACTOR)
        except RunError as error:
            logger.warning("Ladder run %s is not retried: %s", run.pk, error)


def queue_baseline_run(track: Track, release: Blob, budget: str = "") -> Run | None:
    """Queue a run of the baseline with its smallest unused seed at this budget; return None without a baseline."""
    baseline, budget = track.season.baseline, budget or track.budget
    if baseline is None:
        return None
    used = set(baseline.runs.filter(track=track, budget=budget).values_list("seed", flat=True))
    run = runs.make_run(baseline, track, seed=next(iterate_free_seeds(used)), budget=budget, purpose=Run.Purpose.LADDER)
    runs.queue_run(run, release=release)
    return run


def queue_further_seed(entry: Entry, track: Track, release: Blob) -> bool:
    run = runs.make_run(entry, track)
    policy.charge_hours(run)
    return runs.queue_run(run, release=release, priority=Job.Priority.LADDER)


def find_entries_lacking_seeds(track: Track) -> QuerySet[Entry]:
    """Return the entries with a finished run and fewer runs than `track.seeds`, those with fewest first.

    Entries with a run that failed, stopped or was cancelled are excluded; where runs that are behind stop, also those
    that are decided, or whose last run is not in the standings yet.
    """
    assert track.season.baseline_id is not None, "a filled ladder has a baseline"
    here = Q(runs__track=track, runs__season=track.season_id, runs__budget=track.budget)
    ended = Q(runs__state__in=Run.WITHOUT_RESULT)
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
    if track.stops_early:
        rows = Standing.objects.filter(UNDECIDED, table__track=track, table__axis="flops", entry=OuterRef("pk"))
        entries = entries.annotate(shown=Subquery(rows.values("run_count"))).filter(begun=F("shown"))
    return entries.order_by("begun", "pk")
