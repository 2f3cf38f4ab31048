"""`manage.py bootstrap_site`: set up a new site up to its first run."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.utils.crypto import get_random_string

from leaderboard.models import Run
from leaderboard.schedule import first_season
from leaderboard.schedule.first_season import SetupError
from leaderboard.submissions.intake import IntakeError


class Command(BaseCommand):
    help = "Create the first season, a small CPU track, tonight's run of main and more architectures. Idempotent."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--main-only", action="store_true", help="submit main only")
        parser.add_argument("--superuser", metavar="NAME", help="create this superuser and print the password")

    def handle(self, *args: Any, main_only: bool, superuser: str | None, **options: Any) -> None:
        try:
            track = first_season.set_up_site(main_only=main_only)
        except (SetupError, IntakeError) as error:
            raise CommandError(str(error)) from error
        waiting = Run.objects.filter(track=track).waiting().count()
        self.stdout.write(f"{track}: {waiting} run{'' if waiting == 1 else 's'} waiting")
        if superuser and User.objects.filter(username=superuser).exists():
            self.stdout.write(f"{superuser} exists already")
        elif superuser:
            password = get_random_string(20)
            User.objects.create_superuser(superuser, password=password)
            self.stdout.write(f"superuser {superuser}, password {password} (shown only once; change it in the admin)")
