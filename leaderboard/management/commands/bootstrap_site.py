"""`manage.py bootstrap_site`: bring a new site to its first departure."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.utils.crypto import get_random_string

from leaderboard.models import Run
from leaderboard.schedule import first_season
from leaderboard.schedule.first_season import SetupError
from leaderboard.submissions.intake import IntakeError


class Command(BaseCommand):
    help = "First season, a small CPU track, tonight's train of main, more architectures behind it. Safe to repeat."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--main-only", action="store_true", help="enter nothing but main")
        parser.add_argument(
            "--superuser", metavar="NAME", help="also make this administrator, with a password shown once"
        )

    def handle(self, *args: Any, main_only: bool, superuser: str | None, **options: Any) -> None:
        try:
            track = first_season.set_up_site(main_only=main_only)
        except (SetupError, IntakeError) as error:
            raise CommandError(str(error)) from error
        waiting = Run.objects.filter(track=track).waiting().count()
        self.stdout.write(f"{track}: {waiting} run{'' if waiting == 1 else 's'} waiting")
        if superuser:
            self.make_superuser(superuser)

    def make_superuser(self, name: str) -> None:
        users = get_user_model()
        if users.objects.filter(username=name).exists():
            self.stdout.write(f"{name} is there already")
            return
        password = get_random_string(20)
        users.objects.create_superuser(username=name, password=password)
        self.stdout.write(f"administrator {name}, password {password} (shown this once; change it in the admin)")
