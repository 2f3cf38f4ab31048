"""`manage.py create_season NAME`: prepare a season's dataset, then continue all tracks in it."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from leaderboard.schedule import evaluation_data, first_season, next_season
from leaderboard.schedule.first_season import SetupError
from trainer.accounting.budget import parse_tokens
from trainer.data.corpora import KINDS
from trainer.errors import UserError
from trainer.scoring.benchmark_tasks import NAMES, check_names


class Command(BaseCommand):
    help = (
        "Prepare the dataset and evaluation data of a new season and store them. Then make it current: all tracks of "
        "the season before continue in it with the newest scored main as baseline. After an interruption run it again: "
        "what is done is kept."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "--corpus", help=f"one of {', '.join(sorted(KINDS))}; without it: the season that the admin has added"
        )
        parser.add_argument("--tokenizer", default="bpe:32768", help="default: %(default)s")
        parser.add_argument("--tokens", help="read 5.5 bytes of text for each, such as 12B; default: the whole corpus")
        parser.add_argument("--suite", default=",".join(NAMES), help="benchmark tasks to store; default: all")
        parser.add_argument("--eval-data", type=Path, help=evaluation_data.FOLDER_HELP)

    def handle(self, *args: Any, name: str, tokens: str | None, suite: str, verbosity: int, **options: Any) -> None:
        try:
            limit = parse_tokens(tokens) if tokens is not None else None
            tasks = [task.strip() for task in suite.split(",") if task.strip()]
            check_names(tasks)
            if options["corpus"] is None:
                season = next_season.get_season(name)
            else:
                season = next_season.create_season(name, options["corpus"], options["tokenizer"], limit)
            season.full_clean()
            # First, since the dataset may take hours: a season begins with all evaluation data or not at all.
            if lacking := evaluation_data.store_evaluation_data(season, tasks, options["eval_data"]):
                raise SetupError(
                    f"No evaluation data of {', '.join(lacking)}, so {season} does not begin. Run this again with a "
                    "network, with a folder that has the data (--eval-data), or with the tasks that you need (--suite)."
                )
            first_season.prepare_season(season, show_progress=verbosity > 0)
            tracks = next_season.begin_season(season)
        except ValidationError as error:
            raise CommandError("\n".join(error.messages)) from error
        except (SetupError, UserError, OSError) as error:
            raise CommandError(str(error)) from error
        season.refresh_from_db()
        self.stdout.write(f"{season}: dataset {season.dataset_hash[:12]}")
        queued = next_season.start_ladders(tracks)
        self.stdout.write(f"{len(tracks)} tracks continue in it; {queued} runs of its baseline's ladder are requested")
        for track, reason in next_season.list_left_tracks(season):
            self.stdout.write(f"{track.slug} stays in {track.season}: {reason}")
