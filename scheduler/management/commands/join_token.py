"""`manage.py join_token`: a token with which one node joins."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from scheduler import node_tokens
from scheduler.models import Node


class Command(BaseCommand):
    help = "Print a token that lets one node in, once. It is shown only now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--trusted", action="store_true", help="the node may score")
        parser.add_argument("--label", action="append", default=[], metavar="LABEL", help="may be given several times")
        parser.add_argument("--hours", type=float, default=node_tokens.JOIN_TOKEN_HOURS, help="how long it may be used")
        parser.add_argument("--renew", metavar="NAME", help="let this node, known already, come back with a new token")

    def handle(
        self, *args: Any, trusted: bool, label: list[str], hours: float, renew: str | None, **options: Any
    ) -> None:
        node = Node.objects.filter(name=renew).first() if renew else None
        if renew and node is None:
            raise CommandError(f"There is no node called {renew!r}.")
        token = node_tokens.create_join_token(trusted=trusted, labels=label, hours=hours, renews=node)
        self.stderr.write(f"Good for {hours:g} hours, for one node:", ending="\n")
        self.stderr.write(f"  dailytrain node --server {settings.SITE_URL} --token {token}", ending="\n")
        self.stdout.write(token)
