"""`manage.py grant_role`: grant a role; creates the first maintainer of a site."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from leaderboard import permissions


class Command(BaseCommand):
    help = "Grant a role to a user who has signed in. The admin also revokes roles."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("role", choices=permissions.ROLES)

    def handle(self, *args: Any, name: str, role: str, **options: Any) -> None:
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"No user {name} has signed in yet.")
        changed = permissions.grant_role(user, role, None)
        self.stdout.write(f"{name} is {'now' if changed else 'already'} {permissions.describe_role(role)}.")
