from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Records of other boards are a page of the documentation. A smoke test has one name."""

    dependencies = [("leaderboard", "0015_github_repository_ids"), ("scheduler", "0005_event_kind")]
    operations = [
        migrations.DeleteModel(name="ReportedRecord"),
        migrations.AlterField(
            model_name="entry",
            name="smoke",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text='Result of the smoke test: "passed" (None: inconclusive), then the fields of `SmokeResult`.',
            ),
        ),
        migrations.AlterField(
            model_name="entry",
            name="smoke_job",
            field=models.ForeignKey(
                blank=True,
                help_text="Job of the last smoke test.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="scheduler.job",
            ),
        ),
    ]
