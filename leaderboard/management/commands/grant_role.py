"""`manage.py grant_role`: give somebody who has signed in a role, or take it; how a site gets its first maintainer."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from leaderboard import permissions


class Command(BaseCommand):
    help = "Give NAME a role (maintainer, coordinator, core), or take it with --take."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("role", choices=permissions.ROLES)
        parser.add_argument("--take", action="store_true")

    def handle(self, *args: Any, name: str, role: str, take: bool, **options: Any) -> None:
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"Nobody called {name} has signed in here yet.")
        changed = (permissions.revoke_role if take else permissions.grant_role)(user, role, None)
        what = f"{permissions.describe_role(role)} {'no longer' if take else 'now'}"
        self.stdout.write(f"{name} is {what}" if changed else f"{name}: nothing has changed")
