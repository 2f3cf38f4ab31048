from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Replay two neighboring stretches, and the first one always."""

    dependencies = [("leaderboard", "0016_remove_reported_records"), ("scheduler", "0007_checkpoint_seconds")]
    operations = [
        migrations.AddField(
            model_name="replay",
            name="first",
            field=models.ForeignKey(
                blank=True,
                help_text="The run's first checkpoint, replayed as well. Null if `start` is, and when the replay has "
                "ended.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="scheduler.checkpoint",
            ),
        ),
        migrations.AddField(
            model_name="replay",
            name="middle",
            field=models.ForeignKey(
                blank=True,
                help_text="Checkpoint between both ends. Null if it is one stretch, and when the replay has ended.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="scheduler.checkpoint",
            ),
        ),
    ]
