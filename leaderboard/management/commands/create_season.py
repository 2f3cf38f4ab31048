"""`manage.py create_season NAME`: prepare a season's dataset, then continue all tracks in it."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from leaderboard import outbox
from leaderboard.models import OutboxMessage
from leaderboard.schedule import next_season, preparations
from leaderboard.schedule.evaluation_data import FOLDER_HELP
from leaderboard.schedule.first_season import SetupError
from scheduler.models import SITE_ACTOR
from trainer.accounting.budget import parse_tokens
from trainer.data.corpora import KINDS
from trainer.errors import UserError
from trainer.scoring.benchmark_tasks import NAMES

POLL_SECONDS = 2.0


class Command(BaseCommand):
    help = (
        "Prepare the dataset and evaluation data of a new season and store them. Then make it current: all tracks of "
        "the season before continue in it with the newest scored main as baseline. After an interruption run it again. "
        "The season's page in the admin shows the progress and can do the same."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "--corpus", help=f"one of {', '.join(sorted(KINDS))}; without it: the season that the admin has added"
        )
        parser.add_argument("--tokenizer", default="bpe:32768", help="default: %(default)s")
        parser.add_argument("--tokens", help="read 5.5 bytes of text for each, such as 12B; default: the whole corpus")
        parser.add_argument("--suite", default=",".join(NAMES), help="benchmark tasks to store; default: all")
        parser.add_argument("--eval-data", type=Path, help=FOLDER_HELP)

    def handle(self, *args: Any, name: str, tokens: str | None, suite: str, **options: Any) -> None:
        try:
            limit = parse_tokens(tokens) if tokens is not None else None
            tasks = preparations.parse_suite(suite)
            if options["corpus"] is None:
                season = next_season.get_season(name)
            else:
                season = next_season.create_season(name, options["corpus"], options["tokenizer"], limit)
            preparation = preparations.request_preparation(season, SITE_ACTOR, tasks, options["eval_data"])
        except ValidationError as error:
            raise CommandError("\n".join(error.messages)) from error
        except (SetupError, UserError) as error:
            raise CommandError(str(error)) from error
        self.work_on(preparation)
        season.refresh_from_db()
        if not season.active:
            raise CommandError(preparation.problem or preparation.result["message"])
        self.stdout.write(f"{season}: dataset {season.dataset_hash[:12]}")
        self.stdout.write(preparation.result["message"])

    def work_on(self, preparation: OutboxMessage) -> None:
        """Prepare the season in this process; while another one does, wait for it."""
        seen = ""
        while True:
            outbox.process_message(preparation.pk)
            preparation.refresh_from_db()
            if preparation.state not in preparations.UNFINISHED:
                return
            state = preparation.problem or preparation.result.get("stage", "")
            if state != seen:
                seen, text = state, f"Another process works on a preparation: {state.rstrip('.')}."
                self.stderr.write(f"{text} Ctrl-C leaves it to that process.")
            time.sleep(POLL_SECONDS)
