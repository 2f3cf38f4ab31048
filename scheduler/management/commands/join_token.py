"""`manage.py join_token`: prints a new join token."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from scheduler import node_tokens
from scheduler.models import Node


class Command(BaseCommand):
    help = "Print a new token with which one node joins. It is not shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--trusted", action="store_true", help="allow the node to score")
        parser.add_argument("--label", action="append", default=[], metavar="LABEL", help="repeatable")
        parser.add_argument("--hours", type=float, default=node_tokens.JOIN_TOKEN_HOURS, help="hours until it expires")
        parser.add_argument("--renew", metavar="NAME", help="register this existing node again")

    def handle(
        self, *args: Any, trusted: bool, label: list[str], hours: float, renew: str | None, **options: Any
    ) -> None:
        node = Node.objects.filter(name=renew).first() if renew else None
        if renew and node is None:
            raise CommandError(f"Unknown node {renew!r}.")
        token = node_tokens.create_join_token(trusted=trusted, labels=label, hours=hours, renews=node)
        self.stderr.write(f"Valid for {hours:g} hours and one node:", ending="\n")
        self.stderr.write(f"  dailytrain node --server {settings.SITE_URL} --token {token}", ending="\n")
        self.stdout.write(token)
