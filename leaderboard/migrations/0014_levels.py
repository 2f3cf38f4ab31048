from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db import migrations, models

import leaderboard.levels
from leaderboard.levels import levels


def give_levels(apps: Any, schema_editor: Any) -> None:
    """Give the points of finished curves the level that new ones get when they come in."""
    points = apps.get_model("leaderboard", "CurvePoint").objects
    for run in points.order_by("run").values_list("run", flat=True).distinct().iterator():
        rows = points.filter(run=run).order_by("series", "step").values_list("series", "step", "loss", "gradient_norm")
        for series, curve in groupby(rows, key=itemgetter(0)):
            for level, steps in by_level([(step, values) for _, step, *values in curve]):
                points.filter(run=run, series=series, step__in=steps).update(level=level)


def by_level(curve: list[Any]) -> Iterator[tuple[int, list[int]]]:
    """Yield each level but the one that all have, with some of its steps: a database takes a bounded number at once."""
    steps: dict[int, list[int]] = {}
    for (step, _), level in zip(curve, levels(curve), strict=True):
        steps.setdefault(level, []).append(step)
    steps.pop(leaderboard.levels.TOP, None)
    for level, found in steps.items():
        for start in range(0, len(found), 500):
            yield level, found[start : start + 500]


class Migration(migrations.Migration):
    dependencies = [("leaderboard", "0013_temperature")]

    operations = [
        migrations.AddField("curvepoint", "level", models.SmallIntegerField(default=leaderboard.levels.TOP)),
        migrations.AlterField(
            "curvepoint",
            "run",
            models.ForeignKey(
                db_index=False, on_delete=models.deletion.CASCADE, related_name="points", to="leaderboard.run"
            ),
        ),
        migrations.RunPython(give_levels, migrations.RunPython.noop),
        migrations.AddIndex("curvepoint", models.Index(fields=["run", "series", "level"], name="curve_by_level")),
    ]
