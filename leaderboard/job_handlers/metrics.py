"""Store lines of `metrics.jsonl` as curve points and samples. They are untrusted, and never part of a score."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leaderboard import metrics_queries
from leaderboard.charts import downsampling
from leaderboard.models import CurvePoint, Run, Sample
from leaderboard.sanitize import MAX_INTEGER, sanitize_text

logger = logging.getLogger(__name__)

MAX_POINTS = 20_000  # per run and series; longer curves are downsampled (`leaderboard.charts.downsampling`)
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
    metrics_queries.update_progress(run, progress)


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
    if not points:
        return
    levels: dict[tuple[str, int], int] = {}
    changed_series = {series for series, _ in points}
    for series in changed_series:
        fresh = {step: point for (name, step), point in points.items() if name == series}
        levels |= {(series, step): level for step, level in update_levels(run, series, fresh).items()}
    metrics_queries.insert_points(
        run,
        [
            {**point.model_dump(), "series": series, "temperature_celsius": temperature, "level": levels[series, step]}
            for (series, step), point in points.items()
        ],
    )
    if level := downsampling.level_for(max(step for _, step in points), MAX_POINTS):
        CurvePoint.objects.filter(run=run, series__in=changed_series, level__lt=level).delete()


def update_levels(run: Run, series: str, fresh: Mapping[int, PointLine]) -> dict[int, int]:
    """Return the downsampling levels of new points, and set those of the points that they replace as extremes.

    Without new points: the end of the curve was deleted.
    """
    if fresh:
        since = min(fresh)
        stored = metrics_queries.load_changeable_points(run, series, since)
        last = max(stored, default=None)  # the end of the curve always has the highest level, so it is among them
        if last is not None and last < downsampling.round_down(since):
            stored = metrics_queries.load_changeable_points(run, series, last)
    else:
        curve = CurvePoint.objects.filter(run=run, series=series).order_by("-step")
        last = curve.values_list("step", flat=True).first()
        stored = metrics_queries.load_changeable_points(run, series, last) if last is not None else {}
    points: dict[int, PointLine | CurvePoint] = {**stored, **fresh}
    if not points:
        return {}
    steps = sorted(points)
    values = [(step, [getattr(points[step], name) for name in downsampling.EXTREMES_OF]) for step in steps]
    levels = dict(zip(steps, downsampling.compute_levels(values), strict=True))
    metrics_queries.write_levels(
        [(levels[step], row.id) for step, row in stored.items() if step not in fresh and row.level != levels[step]]
    )
    return {step: levels[step] for step in fresh}


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
    for series in CurvePoint.Series.values:
        update_levels(run, series, {})
    Sample.objects.filter(run=run, step__gt=step).delete()
