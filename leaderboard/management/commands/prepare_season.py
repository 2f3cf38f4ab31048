"""`manage.py prepare_season`: build a season's dataset and pin its hash."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leaderboard.models import Season
from leaderboard.schedule import first_season
from leaderboard.schedule.first_season import SetupError


class Command(BaseCommand):
    help = "Build the dataset of a season and pin its hash. Creates the first season. Idempotent."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--season", help="name of the season; default: the current one")

    def handle(self, *args: Any, season: str | None, verbosity: int, **options: Any) -> None:
        found = Season.objects.filter(name=season).first() if season else first_season.ensure_season()
        if found is None:
            raise CommandError(f"There is no season named {season!r}.")
        try:
            first_season.prepare_season(found, show_progress=verbosity > 0)
        except SetupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{found}: dataset {found.dataset_hash[:12]}")
