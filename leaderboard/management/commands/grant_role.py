"""`manage.py grant_role`: grant or revoke a role; creates the first maintainer of a site."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from leaderboard import permissions


class Command(BaseCommand):
    help = "Grant a role to a user who has signed in, or revoke it with --take."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("role", choices=permissions.ROLES)
        parser.add_argument("--take", action="store_true")

    def handle(self, *args: Any, name: str, role: str, take: bool, **options: Any) -> None:
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"No user {name} has signed in yet.")
        changed = (permissions.revoke_role if take else permissions.grant_role)(user, role, None)
        what = f"{permissions.describe_role(role)} {'no longer' if take else 'now'}"
        self.stdout.write(f"{name} is {what}" if changed else f"{name}: nothing has changed")
