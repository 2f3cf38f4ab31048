from typing import Any

from django.db import migrations, models

import leaderboard.models.field_checks


def recompute(apps: Any, schema_editor: Any) -> None:
    """Make each table stale, so that the next minute computes it with the new column."""
    apps.get_model("leaderboard", "StandingsTable").objects.update(version="")


class Migration(migrations.Migration):
    dependencies = [("leaderboard", "0002_families_and_rulings")]

    operations = [
        migrations.AddField(
            model_name="standingstable",
            name="noise_freedom",
            field=models.PositiveIntegerField(
                default=0, db_default=0, help_text="Degrees of freedom of the noise of one run, in every interval of the rows."
            ),
        ),
        migrations.AddField(
            model_name="track",
            name="notebook_hosts",
            field=models.JSONField(
                blank=True,
                db_default=[],
                default=list,
                validators=[leaderboard.models.field_checks.check_hosts],
                help_text="Hosts from which its notebooks may fetch by HTTPS, with their subdomains, such as "
                '["huggingface.co", "hf.co"]. Nodes log each connection. Empty: notebooks have no network.',
            ),
        ),
        migrations.RunPython(recompute, migrations.RunPython.noop, elidable=True),
    ]
