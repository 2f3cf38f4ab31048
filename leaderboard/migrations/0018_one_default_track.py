from __future__ import annotations

from typing import Any

from django.db import migrations, models


def keep_first_default(apps: Any, editor: Any) -> None:
    """Keep the default that the board has shown: the first one in order."""
    defaults = apps.get_model("leaderboard", "Track").objects.filter(is_default=True).order_by("position", "slug")
    for track in defaults[1:]:
        type(track).objects.filter(pk=track.pk).update(is_default=False)


class Migration(migrations.Migration):
    dependencies = [("leaderboard", "0017_replays_of_neighboring_stretches")]

    operations = [
        migrations.RunPython(keep_first_default, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="track",
            constraint=models.UniqueConstraint(
                fields=["is_default"],
                condition=models.Q(("is_default", True)),
                name="one_default_track",
                violation_error_message="Another track is the default. Clear its mark first.",
            ),
        ),
    ]
