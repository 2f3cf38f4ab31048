"""`manage.py create_season NAME`: prepare a season's dataset, then continue all tracks in it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from leaderboard.schedule import first_season, next_season
from leaderboard.schedule.first_season import SetupError
from trainer.data.corpora import KINDS
from trainer.data.sizes import parse_tokens
from trainer.errors import UserError


class Command(BaseCommand):
    help = (
        "Prepare the dataset of a new season and store it for nodes. Then make it the current season: all tracks of "
        "the season before continue in it with the newest scored main as baseline. After an interruption, run it again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--corpus", required=True, help=f"one of {', '.join(sorted(KINDS))}")
        parser.add_argument("--tokenizer", default="bpe:32768", help="default: %(default)s")
        parser.add_argument("--tokens", help="read 5.5 bytes of text for each, such as 12B; default: the whole corpus")

    def handle(self, *args: Any, name: str, tokens: str | None, verbosity: int, **options: Any) -> None:
        try:
            limit = parse_tokens(tokens) if tokens is not None else None
            season = next_season.create_season(name, options["corpus"], options["tokenizer"], limit)
            first_season.prepare_season(season, show_progress=verbosity > 0)
        except ValidationError as error:
            raise CommandError("\n".join(error.messages)) from error
        except (SetupError, UserError) as error:
            raise CommandError(str(error)) from error
        tracks = next_season.begin_season(season)
        queued = next_season.start_ladders(tracks)
        self.stdout.write(f"{season}: dataset {season.dataset_hash[:12]}")
        self.stdout.write(f"{len(tracks)} tracks continue in it; {queued} runs of its baseline's ladder are requested")
