"""`manage.py connect_github`: check the connection to GitHub."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leaderboard.integrations.github import checklist, client
from leaderboard.integrations.github.checklist import CheckItem
from leaderboard.outbox import PermanentError, RetryLater


class Command(BaseCommand):
    help = "Check the connection to GitHub and print what is missing (docs/how-to/github.md)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--fix", action="store_true", help="configure the App's webhook at GitHub")
        parser.add_argument("--redeliver", action="store_true", help="let GitHub repeat its last delivery")

    def handle(self, *args: Any, fix: bool, redeliver: bool, **options: Any) -> None:
        try:
            if fix:
                checklist.fix_webhook(client.connect_app())
            missing = sum(self.show(item) for item in checklist.check_connection())
            if redeliver:
                missing += self.show(checklist.redeliver_newest(client.connect_app()))
        except (PermanentError, RetryLater) as error:
            raise CommandError(str(error)) from error
        if missing:
            raise CommandError(f"{missing} {'thing is' if missing == 1 else 'things are'} missing.")
        self.stdout.write("The site is connected to GitHub.")

    def show(self, item: CheckItem) -> int:
        """Print a line; return 1 for what is missing."""
        self.stdout.write(f"[{'x' if item.ok else ' '}] {item.what}")
        if not item.ok:
            self.stdout.write(f"      {item.hint}")
        return not item.ok
