"""`manage.py prepare_season`: build a season's dataset once and pin its hash."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leaderboard.models import Season
from leaderboard.schedule import first_season
from leaderboard.schedule.first_season import SetupError


class Command(BaseCommand):
    help = "Build the dataset of a season and pin its hash; a new site gets its first season. Safe to repeat."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--season", help="name of the season; the present one if not given")

    def handle(self, *args: Any, season: str | None, verbosity: int, **options: Any) -> None:
        chosen = Season.objects.filter(name=season).first() if season else first_season.ensure_season()
        if chosen is None:
            raise CommandError(f"There is no season named {season!r}.")
        try:
            first_season.prepare_season(chosen, show_progress=verbosity > 0)
        except SetupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{chosen}: dataset {chosen.dataset_hash[:12]}")
