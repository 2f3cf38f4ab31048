"""Stores standings as rows: recomputed by Celery when a scored run or a rule changes, read by pages and API.

`leaderboard.recomputation` enqueues the task when a change is committed. The task may run twice and late: rows are
replaced only if no other task has replaced them since it began, and a table whose `version` is current is left alone.
A periodic task recomputes the tables that no task was enqueued for.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from statistics import fmean

from django.core.cache import cache
from django.db import transaction
from django.db.models import Count, Max, Sum
from django.utils import timezone

from leaderboard.models import Run, Standing, StandingsTable, Track
from leaderboard.models.standings import parse_entry_name
from leaderboard.rankings.chart_data import build_chart_data
from leaderboard.rankings.standings import EntryStanding, ResultsDict, TrackStandings, compute_standings
from trainer.scoring.multiplier import AXES, Axis, EntryMultiplier

logger = logging.getLogger(__name__)
RESULTS_CACHE_SECONDS = 600
MAX_TIE_TITLES = 3
MAX_ATTEMPTS = 5
BATCH = 500
OPTIONAL_FIELDS = (
    *("multiplier", "benchmark_average", "parameters", "train_flops", "train_seconds"),
    *("tokens", "tokens_per_second", "finished_at"),
)
SIZE_FIELDS = ("parameters", "stored_bytes", "constant_bytes", "scoring_flops", "source_bytes")


def compute_version(track: Track) -> str:
    """Return a fingerprint of the track's scored runs and rules. One query."""
    runs = Run.objects.scored(track).order_by().aggregate(count=Count("pk"), last=Max("pk"), revisions=Sum("revision"))
    rules = (
        track.season_id,
        track.season.baseline_id,
        track.budget,
        track.ladder,
        track.seeds,
        track.confirmations,
        track.is_traced,
    )
    return hashlib.sha256(repr((sorted(runs.items()), rules)).encode()).hexdigest()


def recompute_standings(track: Track) -> bool:
    """Update the tables of all axes; return whether one was replaced. The track has its season selected."""
    replaced = [recompute_table(track, axis) for axis in AXES]
    return any(replaced)


def recompute_stale_standings() -> None:
    """Recompute every track whose runs or rules have changed; log failures."""
    for track in Track.objects.select_related("season"):
        try:
            recompute_standings(track)
        except Exception:
            logger.exception("The standings of %s cannot be computed.", track.slug)


def refresh_standings(track: Track, axis: Axis = "flops") -> StandingsTable:
    """Return the current table, recomputed if it is stale: for messages that are sent once."""
    recompute_table(track, axis)
    return load_standings(track, axis)


def load_standings(track: Track, axis: Axis = "flops") -> StandingsTable:
    """Return the stored table with its track; an empty one before the first computation. One query."""
    table = StandingsTable.objects.filter(track=track, axis=axis).first() or StandingsTable.build_empty(track, axis)
    table.track = track
    return table


def load_results(track: Track, axis: Axis) -> ResultsDict:
    """Return the track's results file, computed at most once per version and axis."""
    key = f"results:{track.pk}:{axis}:{compute_version(track)}"
    return cache.get_or_set(key, lambda: build_results(track, axis), RESULTS_CACHE_SECONDS)  # type: ignore[return-value]


def build_results(track: Track, axis: Axis) -> ResultsDict:
    standings = compute_standings(track, axis)
    table = StandingsTable(axis=axis, full_budget=standings.full, baseline_id=standings.baseline)
    return standings.to_dict(table.command)


def recompute_table(track: Track, axis: Axis) -> bool:
    """Replace the rows of one axis if they are stale; return whether this call did."""
    for _ in range(MAX_ATTEMPTS):
        table, _ = StandingsTable.objects.get_or_create(track=track, axis=axis)
        version = compute_version(track)  # before the runs are read: at worst the rows are newer than it says
        if table.version == version:
            return False
        standings = compute_standings(track, axis)
        if replace_rows(table, standings, version):
            return True
    return False  # others have replaced them again and again; the last of them has


@transaction.atomic
def replace_rows(table: StandingsTable, standings: TrackStandings, version: str) -> bool:
    """Replace a table unless another task has done so since `table` was read; return whether this call did."""
    rows = build_rows(table, standings)
    unchanged = StandingsTable.objects.filter(pk=table.pk, version=table.version, computed_at=table.computed_at)
    is_ours = unchanged.update(version=version, computed_at=timezone.now(), **build_table_fields(standings, rows))
    if is_ours:
        Standing.objects.filter(table=table).delete()
        Standing.objects.bulk_create(rows, BATCH)
    return is_ours == 1


# --- what is stored --------------------------------------------------------------------------------------------------


def build_table_fields(standings: TrackStandings, rows: list[Standing]) -> dict[str, object]:
    track, comparison = standings.track, standings.comparison
    trust_levels = {row.trust for row in rows}
    return {
        "budget": track.budget,
        "full_budget": standings.full,
        "baseline": standings.baseline,
        "leader": find_leader(rows),
        "problem": standings.problem[:500],
        "ladder_verdict": str(comparison[comparison.baseline].verdict) if comparison else "",
        "noise_freedom": comparison.ladder.freedom if comparison else 0,
        "ladder_runs": len(standings.ladder_runs),
        "rungs_done": standings.count_rung_runs(),
        "rungs_wanted": len(track.rungs()) * int(track.ladder.get("seeds", 0)),
        "row_count": len(rows),
        "architectures": sorted({row.latest.architecture for row in standings.rows}),
        "trust_levels": [trust for trust in Run.Trust.values if trust in trust_levels],
        "empty_columns": [name for name in OPTIONAL_FIELDS if all(getattr(row, name) is None for row in rows)],
        "chart_data": build_chart_data(standings),
    }


def find_leader(rows: Iterable[Standing]) -> int | None:
    """Return the entry that holds the record, else the first compared one besides the baseline."""
    compared = [row for row in rows if not row.is_baseline and row.multiplier is not None]
    records = [row for row in compared if row.trust == Run.Trust.RECORD]
    return next((row.entry_id for row in records or compared), None)


def build_rows(table: StandingsTable, standings: TrackStandings) -> list[Standing]:
    titles = {run.entry: run.title for run in standings.eligible}
    return [build_row(table, position, row, titles, standings) for position, row in enumerate(standings.rows)]


def build_row(
    table: StandingsTable, position: int, row: EntryStanding, titles: dict[int, str], standings: TrackStandings
) -> Standing:
    runs = row.runs
    void_reasons = [run.seconds_void for run in runs]
    return Standing(
        table=table,
        entry_id=row.entry,
        position=position,
        is_baseline=row.is_baseline,
        search_text=" ".join((row.latest.title, row.latest.author, row.latest.architecture, row.latest.sha)).casefold(),
        run_ids=[run.run for run in runs],
        run_count=len(runs),
        latest_run_id=row.latest.run,
        finished_at=row.finished_at,
        trust=row.trust,
        bits_per_byte=row.bits_per_byte,
        bits_per_byte_stderr=mean(run.stderr for run in runs),
        benchmark_average=mean(run.average for run in runs),
        **{name: getattr(row.latest, name) for name in SIZE_FIELDS},
        train_flops=mean(run.flops or None for run in runs),
        train_seconds=mean(run.seconds or None for run in runs),
        tokens=mean(run.tokens or None for run in runs),
        tokens_per_second=mean(run.tokens / run.seconds if run.tokens and run.seconds else None for run in runs),
        seconds_void=void_reasons[0] if all(void_reasons) else "",
        left_out=row.left_out,
        **(build_estimate_fields(row.estimate, titles, standings.baseline) if row.estimate else {}),
        is_record=is_record(row),
    )


def build_estimate_fields(estimate: EntryMultiplier, titles: dict[int, str], baseline: int | None) -> dict[str, object]:
    ties = [parse_entry_name(name) for name in estimate.tied_with]
    others = [entry for entry in ties if entry != baseline]
    return {
        "rank": estimate.rank,
        "multiplier": estimate.cm,
        "multiplier_low": estimate.low,
        "multiplier_high": estimate.high,
        "verdict": str(estimate.verdict),
        "ties": ties,
        "tie_count": len(others),
        "tie_titles": [titles[entry] for entry in others[:MAX_TIE_TITLES]],
        "seeds_needed": estimate.seeds_needed,
        "is_extrapolated": estimate.extrapolated,
        "compared_runs": estimate.runs,
        "compared_loss": estimate.loss,
        "compared_compute": estimate.compute,
    }


def is_record(row: EntryStanding) -> bool:
    """Return whether the entry broke the record, now or once, and its multiplier is known."""
    has_multiplier = row.estimate is not None and bool(row.estimate.cm)
    return has_multiplier and not row.is_baseline and row.latest.broke_record


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
