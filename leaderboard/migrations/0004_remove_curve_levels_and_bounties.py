"""Curves have no levels: long ones are thinned when their points arrive. There are no bounties."""

from itertools import groupby
from typing import Any

from django.db import migrations

MAX_POINTS = 2000
BUCKETS = 250
EXTREMES_OF = ("loss", "gradient_norm")


def thin_long_curves(apps: Any, schema_editor: Any) -> None:
    points = apps.get_model("leaderboard", "CurvePoint").objects
    for run, series in points.order_by().values_list("run", "series").distinct().iterator():
        thin_series(points.filter(run=run, series=series).order_by("step"))


def thin_series(curve: Any) -> None:
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


class Migration(migrations.Migration):
    dependencies = [("leaderboard", "0003_freedom_of_intervals_and_notebook_hosts")]

    operations = [
        migrations.RunPython(thin_long_curves, migrations.RunPython.noop),
        migrations.RemoveIndex("curvepoint", "curve_by_level"),
        migrations.RemoveField("curvepoint", "level"),
        migrations.DeleteModel("Bounty"),
    ]
