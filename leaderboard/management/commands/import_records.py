"""`manage.py import_records FILE.json`: the history of another board, shown as reported, not verified."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leaderboard import reported_records
from leaderboard.models import Track


class Command(BaseCommand):
    help = "Take in records that were made elsewhere. They are shown beside a track, as reported, not verified."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="JSON; docs/api.md has an example")
        parser.add_argument("--track", help="slug; the default track if not given")

    def handle(self, *args: Any, **options: Any) -> None:
        track = Track.objects.filter(slug=options["track"]).first() if options["track"] else Track.objects.default()
        if track is None:
            known = ", ".join(Track.objects.values_list("slug", flat=True)) or "none"
            raise CommandError(f"There is no such track; there is {known}.")
        try:
            history = reported_records.parse(options["file"].read_bytes())
        except OSError as error:
            raise CommandError(f"{options['file']} cannot be read: {error.strerror}.") from error
        except reported_records.UnreadableRecords as error:
            raise CommandError(f"{options['file']}: {error}") from error
        new, known_already = reported_records.take(track, history)
        self.stdout.write(f"{new} new, {known_already} known already, as reported by {history.source} on {track.slug}.")
