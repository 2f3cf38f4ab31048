"""Store lines of `metrics.jsonl` as curve points and samples. They are untrusted, and never part of a score."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from django.db.models import F, QuerySet
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leaderboard.models import CurvePoint, Run, Sample
from leaderboard.sanitize import MAX_INTEGER, sanitize_text

logger = logging.getLogger(__name__)

MAX_POINTS = 2000  # per run and series, as many as charts and the API show; then about half of them stay
BUCKETS = 250
EXTREMES_OF = ("loss", "gradient_norm")
KEY = ("run", "series", "step")
MEASURED = [field.name for field in CurvePoint._meta.fields if field.name not in ("id", *KEY)]
PROGRESS_FIELDS = ("step", "fraction", "tokens", "seconds", "loss")
MAX_SAMPLES = 300
PROMPT_LENGTH = 500
TEXT_LENGTH = 4000
MIN_FRACTION = 1e-9

Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, le=1e40)]


class PointLine(BaseModel):
    """A line of kind `train` or `dev`. NaN and infinity are rejected: such a run fails by itself."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: Whole
    kind: Literal["train", "dev"]
    fraction: Amount = 0
    tokens: Whole = 0
    flops: Amount = 0
    seconds: Amount = 0
    loss: Amount
    bits_per_byte: Amount | None = None
    learning_rate: Amount | None = None
    gradient_norm: Amount | None = None
    tokens_per_second: Amount | None = None
    mfu: Amount | None = None
    mfu_windowed: Amount | None = None
    memory_bytes: Whole | None = None


class SampleLine(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    step: Whole
    kind: Literal["sample"]
    prompt: str
    text: str


def bound_fraction(fraction: float) -> float:
    """Return the used fraction of the budget. One so small that the end cannot be estimated from it becomes 0."""
    return min(fraction, 1.0) if fraction >= MIN_FRACTION else 0.0


def store_metrics(run: Run, rows: Sequence[dict[str, Any]], temperature: float | None = None) -> None:
    """Store the rows, replacing older rows of the same steps, and update the run's progress.

    `temperature`: of the node's hottest GPU now, in degrees Celsius, as the agent reports it.
    """
    points: dict[tuple[str, int], PointLine] = {}
    texts: dict[tuple[int, str], SampleLine] = {}
    for line in parse_lines(run, rows):
        if isinstance(line, PointLine):
            points[line.kind, line.step] = line
        else:
            texts[line.step, sanitize_text(line.prompt, PROMPT_LENGTH)] = line
    if not points and not texts:
        return
    store_points(run, points, temperature)
    store_samples(run, texts)
    latest = max(
        (point for point in points.values() if point.kind == "train"), key=lambda point: point.step, default=None
    )
    progress = {**latest.model_dump(), "fraction": bound_fraction(latest.fraction)} if latest else {}
    changed = {name: progress[name] for name in PROGRESS_FIELDS} if progress else {}
    Run.objects.filter(pk=run.pk).update(revision=F("revision") + 1, **changed)


def parse_lines(run: Run, rows: Sequence[dict[str, Any]]) -> Iterable[PointLine | SampleLine]:
    dropped = 0
    for row in rows:
        try:
            yield SampleLine.model_validate(row) if row.get("kind") == "sample" else PointLine.model_validate(row)
        except ValidationError:
            dropped += 1
    if dropped:
        logger.warning("Run %s: %d of %d metric lines could not be used.", run.pk, dropped, len(rows))


def store_points(run: Run, points: dict[tuple[str, int], PointLine], temperature: float | None = None) -> None:
    """Insert points, in place of those of the same steps."""
    rows = [
        CurvePoint(
            run=run, series=series, temperature_celsius=temperature, **point.model_dump(exclude={"kind", "fraction"})
        )
        for (series, _), point in points.items()
    ]
    CurvePoint.objects.bulk_create(rows, update_conflicts=True, unique_fields=KEY, update_fields=MEASURED)
    for series in {series for series, _ in points}:
        thin_series(CurvePoint.objects.filter(run=run, series=series).order_by("step"))


def thin_series(curve: QuerySet[CurvePoint]) -> None:
    """Of a series that has grown too long keep the ends and, of each of `BUCKETS` equal stretches, the extremes."""
    if curve.count() <= MAX_POINTS:
        return
    points = list(curve.values_list("pk", "step", *EXTREMES_OF))
    end = points[-1][1] + 1
    kept = {points[0][0], points[-1][0]}
    for _, stretch in groupby(points, key=lambda point: point[1] * BUCKETS // end):
        measured = list(stretch)
        for column in range(2, 2 + len(EXTREMES_OF)):
            known = [(point[column], point[0]) for point in measured if point[column] is not None]
            kept |= {min(known)[1], max(known)[1]} if known else set()
    curve.filter(pk__in={point[0] for point in points} - kept).delete()


def store_samples(run: Run, texts: dict[tuple[int, str], SampleLine]) -> None:
    if not texts:
        return
    room = MAX_SAMPLES - Sample.objects.filter(run=run).count()
    Sample.objects.bulk_create(
        [
            Sample(run=run, step=step, prompt=prompt, text=sanitize_text(line.text, TEXT_LENGTH))
            for (step, prompt), line in list(texts.items())[: max(room, 0)]
        ],
        update_conflicts=True,
        unique_fields=["run", "step", "prompt"],
        update_fields=["text"],
    )


def delete_after_step(run: Run, step: int) -> None:
    """Delete points and samples after `step`, from which the run resumes: they may come out differently."""
    CurvePoint.objects.filter(run=run, step__gt=step).delete()
    Sample.objects.filter(run=run, step__gt=step).delete()
