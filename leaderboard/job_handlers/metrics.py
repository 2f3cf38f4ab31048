"""Store lines of `metrics.jsonl` as curve points and samples. They are untrusted, and never part of a score."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from django.db.models import F
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leaderboard.charts import downsampling
from leaderboard.models import CurvePoint, Run, Sample
from leaderboard.sanitize import MAX_INTEGER, plain_text

logger = logging.getLogger(__name__)

MAX_POINTS = 20_000  # per run and series; longer curves are downsampled (`leaderboard.charts.downsampling`)
MAX_SAMPLES = 300
PROMPT_LENGTH = 500
TEXT_LENGTH = 4000

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
    memory_bytes: Whole | None = None


class SampleLine(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    step: Whole
    kind: Literal["sample"]
    prompt: str
    text: str


POINT_FIELDS = [field for field in PointLine.model_fields if field not in ("kind", "step", "fraction")]
PROGRESS_FIELDS = ("step", "fraction", "tokens", "seconds", "loss")


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
            texts[line.step, plain_text(line.prompt, PROMPT_LENGTH)] = line
    if not points and not texts:
        return
    store_points(run, points, temperature)
    store_samples(run, texts)
    latest = max(
        (point for point in points.values() if point.kind == "train"), key=lambda point: point.step, default=None
    )
    progress = {name: getattr(latest, name) for name in PROGRESS_FIELDS} if latest else {}
    if latest:
        progress["fraction"] = min(latest.fraction, 1.0)
    Run.objects.filter(pk=run.pk).update(revision=F("revision") + 1, **progress)


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
    rows = [
        CurvePoint(
            run=run,
            series=series,
            step=step,
            temperature_celsius=temperature,
            **{name: getattr(point, name) for name in POINT_FIELDS},
        )
        for (series, step), point in points.items()
    ]
    changed_series = {series for series, _ in points}
    for series in changed_series:
        update_levels(run, series, [row for row in rows if row.series == series])
    CurvePoint.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["run", "series", "step"],
        update_fields=[*POINT_FIELDS, "temperature_celsius", "level"],
    )
    if level := downsampling.level_for(max(step for _, step in points), MAX_POINTS):
        CurvePoint.objects.filter(run=run, series__in=changed_series, level__lt=level).delete()


def update_levels(run: Run, series: str, fresh: list[CurvePoint]) -> None:
    """Set the downsampling levels of new points and of the points that they replace as extremes.

    Without new points: the end of the curve was deleted.
    """
    curve = CurvePoint.objects.filter(run=run, series=series)
    last = curve.order_by("-step").values_list("step", flat=True).first()
    since = min(row.step for row in fresh) if fresh else last
    if since is None:
        return
    changeable = downsampling.select_changeable(since if last is None else min(since, last))
    points = {row.step: row for row in curve.filter(changeable).only("step", "level", *downsampling.EXTREMES_OF)}
    known = {step: row.level for step, row in points.items()}
    points |= {row.step: row for row in fresh}
    steps = sorted(points)
    values = [(step, [getattr(points[step], name) for name in downsampling.EXTREMES_OF]) for step in steps]
    for step, level in zip(steps, downsampling.compute_levels(values), strict=True):
        points[step].level = level
    changed = [row for step, row in points.items() if row.pk and row.level != known[step]]
    CurvePoint.objects.bulk_update(changed, ["level"], batch_size=400)  # SQLite takes a bounded number of parameters


def store_samples(run: Run, texts: dict[tuple[int, str], SampleLine]) -> None:
    room = MAX_SAMPLES - Sample.objects.filter(run=run).count() if texts else 0
    Sample.objects.bulk_create(
        [
            Sample(run=run, step=step, prompt=prompt, text=plain_text(line.text, TEXT_LENGTH))
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
        update_levels(run, series, [])
    Sample.objects.filter(run=run, step__gt=step).delete()
