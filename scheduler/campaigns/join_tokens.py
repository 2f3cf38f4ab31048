"""Registers volunteers' machines, which get packets and no other jobs. No account is needed."""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from scheduler import node_tokens, rate_limits
from scheduler.errors import RateLimitError
from scheduler.models import JoinToken, Node
from trainer import protocol

HOURS = 24.0


def create_packet_token(user: AbstractBaseUser | None = None) -> str:
    """Return a join token for one machine; with a user, its texts count as theirs."""
    token = node_tokens.create_join_token(owner=user, hours=HOURS)
    JoinToken.objects.filter(token_hash=node_tokens.hash_token(token)).update(for_packets=True)
    return token


def register_volunteer(address: str, message: protocol.RegisterVolunteer) -> tuple[Node, str]:
    """Register a machine without an account; return it with its node token. Raise RateLimitError.

    `address`: IP address of the request.
    """
    if not rate_limits.is_within_rate_limit("volunteer", address):
        raise RateLimitError("Too many machines joined from this IP address. Try again in an hour.")
    register = protocol.Register(version=message.version, name=message.name, hardware=message.hardware)
    with transaction.atomic():
        return node_tokens.register_node(create_packet_token(), register)
