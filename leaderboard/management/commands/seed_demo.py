"""`manage.py seed_demo`: fill the board with example runs, to look around or to work on the pages."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from leaderboard import demo
from leaderboard.models import Entry, Run


class Command(BaseCommand):
    help = "Fill an empty database with real small training runs of this project, labelled as a demo."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            track = demo.seed_demo()
        except demo.DatabaseNotEmptyError as error:
            raise CommandError(f"{error} Nothing was changed. Use another DAILYTRAIN_HOME or DATABASE_URL.") from error
        runs = Run.objects.filter(track=track).count()
        entries = Entry.objects.filter(track=track).count()
        self.stdout.write(f"{entries} entries and {runs} runs: {settings.SITE_URL}{track.get_absolute_url()}")
