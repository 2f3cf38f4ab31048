"""`manage.py check_night TRACK`: what is missing for a valid night."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from leaderboard.models import Track
from leaderboard.schedule.night_checks import check_next_night


class Command(BaseCommand):
    help = "Check everything that the next night of a track needs. Exit code 1 if it would fail."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("track", help="slug of the track")

    def handle(self, *args: Any, track: str, **options: Any) -> None:
        found = Track.objects.select_related("season__baseline").filter(slug=track).first()
        if found is None:
            slugs = ", ".join(Track.objects.values_list("slug", flat=True)) or "none; run manage.py create_track"
            raise CommandError(f"There is no track {track}. Tracks: {slugs}.")
        checks = check_next_night(found, timezone.now())
        width = max(len(check.name) for check in checks)
        for check in checks:
            self.stdout.write(f"{check.state:11}  {check.name:{width}}  {check.advice}")
        failing = [check.name for check in checks if check.fails_night]
        if failing:
            raise CommandError(f"The night would fail: {', '.join(failing)}.")
        self.stdout.write("Nothing that the night needs is missing.")
