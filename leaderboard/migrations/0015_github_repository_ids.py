from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Know the site's repository by GitHub's id, so that it can be renamed."""

    dependencies = [("leaderboard", "0014_confirmation_rows_only")]
    operations = [
        migrations.CreateModel(
            name="GitHubRepository",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "configured",
                    models.CharField(help_text="The setting's name, in lower case.", max_length=200, unique=True),
                ),
                ("number", models.BigIntegerField(help_text="GitHub's id of the repository.")),
                ("name", models.CharField(help_text="Its full name now: owner/name.", max_length=200)),
            ],
            options={"verbose_name": "GitHub repository", "verbose_name_plural": "GitHub repositories"},
        )
    ]
