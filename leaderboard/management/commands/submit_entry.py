"""`manage.py submit_entry REPO SHA`: an entry from a git repository, without a pull request."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leaderboard.models import Track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError


class Command(BaseCommand):
    help = "Make an entry of one commit of a git repository."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("repository", help="a folder, or an https or ssh address")
        parser.add_argument("sha", help="a commit, or a branch (its commit of this moment is taken)")
        parser.add_argument("--title", required=True)
        parser.add_argument(
            "--arch", default="", help="name in the commit's ARCHITECTURES; if not given, the one that it changes"
        )
        parser.add_argument("--track", help="slug; the default track if not given")
        parser.add_argument("--hypothesis", default="")
        parser.add_argument("--config", default="{}", help='JSON over the track\'s, as {"model": {"depth": 6}}')
        parser.add_argument("--approve", action="store_true", help="let exactly this commit run at once")

    def handle(self, *args: Any, **options: Any) -> None:
        track = Track.objects.filter(slug=options["track"]).first() if options["track"] else Track.objects.default()
        if track is None:
            known = (
                ", ".join(Track.objects.values_list("slug", flat=True)) or "none (manage.py bootstrap_site makes one)"
            )
            raise CommandError(f"There is no such track; there is {known}.")
        try:
            config = json.loads(options["config"])
        except ValueError as error:
            raise CommandError(f"--config is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise CommandError("--config must be a JSON object.")
        try:
            self.enter(track, config, options)
        except IntakeError as error:
            raise CommandError(str(error)) from error

    def enter(self, track: Track, config: dict[str, Any], options: dict[str, Any]) -> None:
        entry = intake.submit_entry(
            options["repository"],
            options["sha"],
            options["title"],
            options["arch"],
            track,
            hypothesis=options["hypothesis"],
            config=config,
        )
        self.stdout.write(f"entry {entry.pk}: {entry} by {entry.author}, {entry.kind}, {entry.state}")
        if options["approve"]:
            for run in intake.approve_entry(entry, entry.sha, None, sentence="Approved by whoever runs this site."):
                self.stdout.write(f"run {run.pk}: {run.state}, seed {run.seed}, {run.get_absolute_url()}")
