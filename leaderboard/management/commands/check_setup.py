"""`manage.py check_setup`: whether the site has a season, a track and an admin, in one line."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from leaderboard.models import Season, Track

ADVICE = {
    "a season": "manage.py create_season NAME --corpus fineweb-edu:sample-100BT --tokens 12B",
    "a track": "manage.py create_track night-h100",
    "an admin": "manage.py createsuperuser",
}


class Command(BaseCommand):
    help = "Say in one line what a new site lacks: a prepared season, a track, an admin. Exit code 1 if anything."

    def handle(self, *args: Any, **options: Any) -> None:
        season = Season.objects.current()
        tracks = Track.objects.count()
        admins = User.objects.filter(is_superuser=True, is_active=True).count()
        has_season = season is not None and season.is_prepared
        found = {"a season": has_season, "a track": tracks, "an admin": admins}
        if missing := [f"{name} ({ADVICE[name]})" for name, there in found.items() if not there]:
            raise CommandError(f"The site lacks {', '.join(missing)}. Then run manage.py check_night.")
        self.stdout.write(f"The site has {season}, tracks: {tracks}, admins: {admins}. Next: manage.py check_night.")
