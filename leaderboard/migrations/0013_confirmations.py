import re

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

WORSE = re.compile(r"the confirmation is (-?[0-9.]+) standard errors worse")


def count_results(apps, schema_editor):
    """Let the attempts count that have a result."""
    apps.get_model("leaderboard", "Run").objects.filter(state="finished").update(counts=True)


def keep_decisions(apps, schema_editor):
    """Make a row of each decision, which was a sentence of the entry."""
    Entry = apps.get_model("leaderboard", "Entry")
    Confirmation = apps.get_model("leaderboard", "Confirmation")
    for entry in Entry.objects.exclude(confirmation="").select_related("track"):
        sentence, worse = entry.confirmation, WORSE.search(entry.confirmation)
        outcome = "worse" if worse else "incomplete"
        if sentence.startswith("A record"):
            outcome = "record"
        elif sentence.startswith("Confirmed"):
            outcome = "replicated"
        Confirmation.objects.create(
            entry=entry,
            season_id=entry.track.season_id,
            outcome=outcome,
            standard_errors=float(worse[1]) if worse else None,
        )


class Migration(migrations.Migration):
    dependencies = [("leaderboard", "0012_late_nights")]

    operations = [
        migrations.CreateModel(
            name="Confirmation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            (
                                "record",
                                "A record: its confirmation runs alone are clearly over the baseline and the record "
                                "before.",
                            ),
                            (
                                "replicated",
                                "Confirmed: fresh seeds on unrelated, trusted nodes agree with the first runs.",
                            ),
                            ("worse", "Not confirmed: its confirmation runs are clearly worse than its first runs."),
                            (
                                "incomplete",
                                "Not confirmed: not every confirmation run came to its end, and all that start count.",
                            ),
                        ],
                        help_text="A record stays one when another entry takes the record.",
                        max_length=12,
                    ),
                ),
                (
                    "standard_errors",
                    models.FloatField(
                        blank=True,
                        help_text="By how many standard errors they are worse than the first runs.",
                        null=True,
                    ),
                ),
                ("decided_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "entry",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="confirmations",
                        to="leaderboard.entry",
                    ),
                ),
                (
                    "season",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="confirmations",
                        to="leaderboard.season",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("entry", "season"), name="one_confirmation_per_season")
                ],
            },
        ),
        migrations.AddField(
            model_name="run",
            name="counts",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether its end used up an attempt of its entry: then only a maintainer starts another.",
            ),
        ),
        migrations.RunPython(keep_decisions, migrations.RunPython.noop),
        migrations.RunPython(count_results, migrations.RunPython.noop),
    ]
