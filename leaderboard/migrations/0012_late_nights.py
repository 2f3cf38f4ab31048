from __future__ import annotations

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

LADDER, MAINTAINER = 50, 30


def forwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    unfinished = apps.get_model("scheduler", "Job").objects.filter(state__in=["held", "queued", "leased"])
    unfinished.filter(kind="train", priority=LADDER).update(preemptible=True)
    monthly = apps.get_model("leaderboard", "Run").objects.filter(purpose="monthly").values("job")
    unfinished.filter(pk__in=monthly, priority=MAINTAINER).update(priority=LADDER)


class Migration(migrations.Migration):
    """Let nights wait for the run of an earlier one, and let queued ladder and monthly runs yield to them."""

    dependencies = [("leaderboard", "0011_main_variant"), ("scheduler", "0002_milestones")]
    operations = [
        migrations.AddField(
            model_name="night",
            name="is_waiting",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Due, and not yet started: it starts when the run of an earlier night has ended.",
            ),
        ),
        migrations.AlterField(
            model_name="night",
            name="date",
            field=models.DateField(help_text="Local date, in the time zone of the schedule."),
        ),
        migrations.AlterField(
            model_name="night",
            name="run",
            field=models.ForeignKey(
                blank=True,
                help_text="Tonight's run. Null while it waits, if the night belongs to the ladder, or if nothing was "
                "started.",
                null=True,
                on_delete=models.deletion.SET_NULL,
                related_name="nights",
                to="leaderboard.run",
            ),
        ),
        migrations.RunPython(forwards, migrations.RunPython.noop),
    ]
