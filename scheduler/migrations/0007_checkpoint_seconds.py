from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Compare the training time that a node charges with the server's."""

    dependencies = [("scheduler", "0006_remove_index_of_state_since")]
    operations = [
        migrations.AddField(
            model_name="checkpoint",
            name="seconds",
            field=models.FloatField(
                blank=True,
                help_text="Seconds that the job has been charged, as the node says. Null if unknown.",
                null=True,
            ),
        )
    ]
