"""Hand-written SQL of metrics: the statements that 1,000 nodes in training run 100 times a second.

PostgreSQL gets all points of a batch in one JSON array, so that its statement is constant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connection

from leaderboard.charts.downsampling import RADIX, round_down
from leaderboard.models import Run
from scheduler.models import Job, Lease

COLUMNS = (
    "series", "step", "tokens", "flops", "seconds", "loss", "bits_per_byte", "learning_rate", "gradient_norm",
    "tokens_per_second", "mfu", "mfu_windowed", "memory_bytes", "temperature_celsius", "level",
)  # fmt: skip
"""Columns of a point without its run, in the order of the statements."""
ON_CONFLICT = """
    ON CONFLICT (run_id, series, step) DO UPDATE SET tokens = EXCLUDED.tokens, flops = EXCLUDED.flops,
    seconds = EXCLUDED.seconds, loss = EXCLUDED.loss, bits_per_byte = EXCLUDED.bits_per_byte,
    learning_rate = EXCLUDED.learning_rate, gradient_norm = EXCLUDED.gradient_norm,
    tokens_per_second = EXCLUDED.tokens_per_second, mfu = EXCLUDED.mfu, mfu_windowed = EXCLUDED.mfu_windowed,
    memory_bytes = EXCLUDED.memory_bytes, temperature_celsius = EXCLUDED.temperature_celsius, level = EXCLUDED.level
"""
INSERT_POINTS = """
    INSERT INTO leaderboard_curvepoint (run_id, series, step, tokens, flops, seconds, loss, bits_per_byte,
    learning_rate, gradient_norm, tokens_per_second, mfu, mfu_windowed, memory_bytes, temperature_celsius, level)
"""
SELECT_JSON = """
    SELECT %s, * FROM json_to_recordset(%s) AS point(
        series text, step bigint, tokens bigint, flops float8, seconds float8, loss float8, bits_per_byte float8,
        learning_rate float8, gradient_norm float8, tokens_per_second float8, mfu float8, mfu_windowed float8,
        memory_bytes bigint, temperature_celsius float8, level smallint
    )
"""
VALUES = "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
INSERT_JSON = "".join((INSERT_POINTS, SELECT_JSON, ON_CONFLICT))
INSERT_ROW = "".join((INSERT_POINTS, VALUES, ON_CONFLICT))
SELECT_RUN = """
    SELECT leaderboard_run.id, leaderboard_run.state, (
        SELECT scheduler_node.health FROM scheduler_lease
        JOIN scheduler_node ON scheduler_node.id = scheduler_lease.node_id
        WHERE scheduler_lease.job_id = leaderboard_run.job_id AND scheduler_lease.state = %s
        ORDER BY scheduler_lease.id DESC LIMIT 1
    ) AS health
    FROM leaderboard_run WHERE job_id = %s
"""
SELECT_LEVELS = """
    SELECT id, step, level, loss, gradient_norm FROM leaderboard_curvepoint WHERE run_id = %s AND series = %s AND ({})
"""
UPDATE_LEVEL = "UPDATE leaderboard_curvepoint SET level = %s WHERE id = %s"
PROGRESS_FIELDS = ("step", "fraction", "tokens", "seconds", "loss")
UPDATE_PROGRESS = """
    UPDATE leaderboard_run
    SET revision = revision + 1, step = %s, fraction = %s, tokens = %s, seconds = %s, loss = %s WHERE id = %s
"""
UPDATE_REVISION = "UPDATE leaderboard_run SET revision = revision + 1 WHERE id = %s"


def build_changeable_condition(step: int) -> tuple[str, list[int]]:
    """Return an SQL condition, with its values: points whose level may change when points from this step on arrive."""
    terms, values = ["step >= %s"], [round_down(step)]
    for low in (RADIX, 2 * RADIX):
        terms.append("level >= %s AND step >= %s")
        values += [low, step >> low + RADIX << low + RADIX]
    return " OR ".join([*terms, "level >= %s"]), [*values, 3 * RADIX]


class StoredPoint(NamedTuple):
    """A stored point, as far as downsampling needs it."""

    id: int
    step: int
    level: int
    loss: float
    gradient_norm: float | None


def load_run_and_health(job: Job) -> tuple[Run, dict[str, Any] | None]:
    """Return the run that the job trains, with its id and state only, and the health of the node that trains it."""
    for run in Run.objects.raw(SELECT_RUN, [Lease.State.ACTIVE, job.pk]):
        health = run.health  # type: ignore[attr-defined]
        return run, json.loads(health) if isinstance(health, str) else health
    raise Run.DoesNotExist


def insert_points(run: Run, points: Sequence[Mapping[str, Any]]) -> None:
    """Insert points with all of `COLUMNS`, in place of those of the same steps."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(INSERT_JSON, [run.pk, json.dumps(points, allow_nan=False)])
        else:
            cursor.executemany(INSERT_ROW, [[run.pk, *(point[name] for name in COLUMNS)] for point in points])


def load_changeable_points(run: Run, series: str, step: int) -> dict[int, StoredPoint]:
    """Return the points of a series whose level may change when points from this step on arrive, by step."""
    condition, values = build_changeable_condition(step)
    with connection.cursor() as cursor:
        cursor.execute(SELECT_LEVELS.format(condition), [run.pk, series, *values])
        return {row[1]: StoredPoint._make(row) for row in cursor.fetchall()}


def write_levels(levels: Sequence[tuple[int, int]]) -> None:
    """Write (level, id) of stored points."""
    if levels:
        with connection.cursor() as cursor:
            cursor.executemany(UPDATE_LEVEL, levels)


def update_progress(run: Run, progress: Mapping[str, Any]) -> None:
    """Increase the run's revision and write the `PROGRESS_FIELDS`, if there are any."""
    with connection.cursor() as cursor:
        if progress:
            cursor.execute(UPDATE_PROGRESS, [*(progress[name] for name in PROGRESS_FIELDS), run.pk])
        else:
            cursor.execute(UPDATE_REVISION, [run.pk])
