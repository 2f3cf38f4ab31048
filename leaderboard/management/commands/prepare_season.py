"""`manage.py prepare_season`: build a season's dataset and pin its hash."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leaderboard.models import Season
from leaderboard.schedule import evaluation_data, first_season
from leaderboard.schedule.first_season import SetupError


class Command(BaseCommand):
    help = (
        "Build a season's dataset, pin its hash, and store its evaluation data. Creates the first season. Idempotent."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--season", help="name of the season; default: the current one")
        parser.add_argument("--eval-data", type=Path, help=evaluation_data.FOLDER_HELP)

    def handle(self, *args: Any, season: str | None, eval_data: Path | None, verbosity: int, **options: Any) -> None:
        chosen = Season.objects.filter(name=season).first() if season else first_season.ensure_season()
        if chosen is None:
            raise CommandError(f"There is no season named {season!r}.")
        try:
            first_season.prepare_season(chosen, show_progress=verbosity > 0)
        except SetupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{chosen}: dataset {chosen.dataset_hash[:12]}")
        if lacking := evaluation_data.store_evaluation_data(chosen, evaluation_data.list_tasks(chosen), eval_data):
            self.stderr.write(f"No evaluation data of {', '.join(lacking)}: runs are scored without it.")
