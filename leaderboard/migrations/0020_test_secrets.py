from django.db import migrations, models

import leaderboard.models.seasons


class Migration(migrations.Migration):
    dependencies = [
        ("leaderboard", "0019_one_table_of_durable_work"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="passes_differ",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether its training graph predicts otherwise than its evaluation graph, beyond random numbers.",
            ),
        ),
        migrations.AddField(
            model_name="season",
            name="reserved_tokens",
            field=models.BigIntegerField(
                blank=True, editable=False, help_text="Tokens of the test split; null until it is prepared.", null=True
            ),
        ),
        migrations.AddField(
            model_name="season",
            name="secret_published_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        # Seasons of before have scores of the public order.
        migrations.AddField(
            model_name="season",
            name="test_secret",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
            preserve_default=False,
        ),
        migrations.AlterField(
            model_name="season",
            name="test_secret",
            field=models.CharField(
                blank=True,
                db_default="",
                default=leaderboard.models.seasons.draw_secret,
                editable=False,
                help_text="Draws the scored sample from the test split. Empty: a season of before, whose order is "
                "public.",
                max_length=64,
            ),
        ),
    ]
