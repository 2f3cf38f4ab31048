"""`manage.py submit_entry REPO SHA`: submit a commit as an entry, without a pull request."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leaderboard.models import Track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError


class Command(BaseCommand):
    help = "Submit a commit of a git repository as an entry."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("repository", help="a folder, or an https or ssh URL")
        parser.add_argument("sha", help="a commit, or a branch: its current commit is used")
        parser.add_argument("--title", required=True)
        parser.add_argument(
            "--arch", default="", help="name in the commit's ARCHITECTURES; default: the one it changes"
        )
        parser.add_argument("--track", help="slug; default: the default track")
        parser.add_argument("--hypothesis", default="")
        parser.add_argument(
            "--config", default="{}", help='JSON that overrides the track\'s configuration: {"model": {"depth": 6}}'
        )
        parser.add_argument("--approve", action="store_true", help="approve this commit")

    def handle(self, *args: Any, repository: str, sha: str, title: str, arch: str, **options: Any) -> None:
        track = Track.objects.find(options["track"])
        if track is None:
            slugs = ", ".join(Track.objects.values_list("slug", flat=True)) or "none; run manage.py bootstrap_site"
            raise CommandError(f"Unknown track. Tracks: {slugs}.")
        try:
            config = json.loads(options["config"])
        except ValueError as error:
            raise CommandError(f"--config is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise CommandError("--config must be a JSON object.")
        more = {"hypothesis": options["hypothesis"], "config": config}
        try:
            entry = intake.submit_entry(repository, sha, title, arch, track, skips_stations=True, **more)
            self.stdout.write(f"entry {entry.pk}: {entry} by {entry.author}, {entry.kind}, {entry.state}")
            if options["approve"]:
                for run in intake.approve_entry(entry, entry.sha, None, message="Approved with submit_entry."):
                    self.stdout.write(f"run {run.pk}: {run.state}, seed {run.seed}, {run.get_absolute_url()}")
        except IntakeError as error:
            raise CommandError(str(error)) from error
