"""Queries of metrics, which 1,000 nodes in training cause 100 times a second (`python -m benchmarks.load`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import F, Q

from leaderboard.charts.downsampling import RADIX, round_down
from leaderboard.models import CurvePoint, Run
from scheduler.models import Job, Lease

COLUMNS = [field.name for field in CurvePoint._meta.fields if field.name not in ("id", "run")]
KEY = ("run", "series", "step")
PROGRESS_FIELDS = ("step", "fraction", "tokens", "seconds", "loss")


def load_run_and_health(job: Job) -> tuple[Run, dict[str, Any] | None]:
    """Return the run that the job trains, with its id and state only, and the health of the node that trains it."""
    leases = Lease.objects.filter(job=job, state=Lease.State.ACTIVE).order_by("-pk")
    return Run.objects.only("state").get(job=job), leases.values_list("node__health", flat=True).first()


def insert_points(run: Run, points: Sequence[Mapping[str, Any]]) -> None:
    """Insert points with all of `COLUMNS`, in place of those of the same steps."""
    rows = [CurvePoint(run=run, **{name: point[name] for name in COLUMNS}) for point in points]
    changed = [name for name in COLUMNS if name not in KEY]
    CurvePoint.objects.bulk_create(rows, update_conflicts=True, unique_fields=KEY, update_fields=changed)


def load_changeable_points(run: Run, series: str, step: int) -> dict[int, CurvePoint]:
    """Return the points of a series whose level may change when points from this step on arrive, by step."""
    changeable = Q(step__gte=round_down(step)) | Q(level__gte=3 * RADIX)
    for low in (RADIX, 2 * RADIX):
        changeable |= Q(level__gte=low, step__gte=step >> low + RADIX << low + RADIX)
    points = CurvePoint.objects.filter(changeable, run=run, series=series).order_by()
    return {point.step: point for point in points.only("step", "level", "loss", "gradient_norm")}


def write_levels(levels: Sequence[tuple[int, int]]) -> None:
    """Write (level, id) of stored points."""
    CurvePoint.objects.bulk_update([CurvePoint(pk=pk, level=level) for level, pk in levels], ["level"])


def update_progress(run: Run, progress: Mapping[str, Any]) -> None:
    """Increase the run's revision and write the `PROGRESS_FIELDS`, if there are any."""
    changed = {name: progress[name] for name in PROGRESS_FIELDS} if progress else {}
    Run.objects.filter(pk=run.pk).update(revision=F("revision") + 1, **changed)
