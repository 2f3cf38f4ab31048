"""Curves have no levels: long ones are thinned when their points arrive. There are no bounties."""

from typing import Any

from django.db import migrations


def thin_long_curves(apps: Any, schema_editor: Any) -> None:
    from leaderboard.job_handlers import metrics

    points = apps.get_model("leaderboard", "CurvePoint").objects
    for run, series in points.order_by().values_list("run", "series").distinct().iterator():
        metrics.thin_series(points.filter(run=run, series=series).order_by("step"))


class Migration(migrations.Migration):
    dependencies = [("leaderboard", "0003_freedom_of_intervals_and_notebook_hosts")]

    operations = [
        migrations.RunPython(thin_long_curves, migrations.RunPython.noop),
        migrations.RemoveIndex("curvepoint", "curve_by_level"),
        migrations.RemoveField("curvepoint", "level"),
        migrations.DeleteModel("Bounty"),
    ]
