"""`manage.py check_night TRACK`: what is missing for a valid night."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from leaderboard.models import Track
from leaderboard.schedule.night_checks import check_next_night

NO_TRACK = (
    "No track has nightly runs. Follow docs/tutorial/first-site.md: manage.py create_season, create_track night-h100 "
    "and join_token --trusted; then run manage.py check_night again."
)


class Command(BaseCommand):
    help = "Check everything that the next night of a track needs. Exit code 1 if it would fail."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("track", nargs="?", default="", help="slug of the track; default: all with nightly runs")

    def handle(self, *args: Any, track: str, **options: Any) -> None:
        tracks = Track.objects.select_related("season__baseline")
        found = tracks.filter(slug=track) if track else tracks.filter(nightly=True)
        if not found:
            slugs = ", ".join(Track.objects.values_list("slug", flat=True)) or "none; run manage.py create_track"
            raise CommandError(f"There is no track {track}. Tracks: {slugs}." if track else NO_TRACK)
        failing = [f"{one.slug}: {', '.join(names)}" for one in found if (names := self.print_checks(one))]
        if failing:
            raise CommandError(f"The night would fail. {'; '.join(failing)}.")
        self.stdout.write("Nothing that the night needs is missing.")

    def print_checks(self, track: Track) -> list[str]:
        """Print a track's checks; return the names of those because of which the night would fail."""
        checks = check_next_night(track, timezone.now())
        width = max(len(check.name) for check in checks)
        self.stdout.write(f"{track}")
        for check in checks:
            self.stdout.write(f"{check.label:18}  {check.name:{width}}  {check.advice}")
        return [check.name for check in checks if check.fails_night]
