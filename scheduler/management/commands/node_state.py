"""`manage.py node_state NAME ACTION`: changes a node's state."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduler import node_health, node_tokens, pool
from scheduler.models import Node

ACTIONS: dict[str, Callable[[Node, str, str], object]] = {
    "drain": pool.drain_node,
    "pause": pool.pause_node,
    "resume": pool.resume_node,
    "test": lambda node, by, why: node_health.request_self_test(node, by),
    "ban": pool.ban_node,
    "trust": pool.trust_node,
    "distrust": pool.distrust_node,
    "revoke": lambda node, by, why: node_tokens.revoke_node_token(node, by),
}
BY = "command line"


class Command(BaseCommand):
    help = "Drain, pause, resume, test, ban, trust or distrust a node, or revoke its token."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("action", choices=ACTIONS)
        parser.add_argument("--why", default="", help="reason, shown to its owner")

    def handle(self, *args: Any, name: str, action: str, why: str, **options: Any) -> None:
        node = Node.objects.filter(name=name).first()
        if node is None:
            raise CommandError(f"Unknown node {name!r}.")
        ACTIONS[action](node, BY, why)
        trust = "trusted" if node.trusted else "not trusted"
        token = "" if node.token_hash else ", without a token"
        self.stdout.write(f"{node.name} is {node.state}, {trust}{token}.")
