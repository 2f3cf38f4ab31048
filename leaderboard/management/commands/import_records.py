"""`manage.py import_records FILE.json`: import the records of another board."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leaderboard import reported_records
from leaderboard.models import Track


class Command(BaseCommand):
    help = "Import records of another board. A track shows them as reported, not verified."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="JSON; docs/reference/api.md has an example")
        parser.add_argument("--track", help="slug; default: the default track")

    def handle(self, *args: Any, **options: Any) -> None:
        track = Track.objects.find(options["track"])
        if track is None:
            raise CommandError(f"Unknown track. Tracks: {', '.join(Track.objects.values_list('slug', flat=True))}.")
        try:
            history = reported_records.parse_records(options["file"].read_bytes())
        except OSError as error:
            raise CommandError(f"{options['file']} cannot be read: {error.strerror}.") from error
        except reported_records.RecordsFileError as error:
            raise CommandError(f"{options['file']}: {error}") from error
        new, known = reported_records.import_records(track, history)
        self.stdout.write(f"{new} new, {known} known records of {history.source} on {track.slug}.")
