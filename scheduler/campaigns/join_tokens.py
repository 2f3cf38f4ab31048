"""How volunteers come in: each machine for packets and nothing else. No account is needed, and none gives much at first
(`reputation`); who has signed in gets a token for a page's line, and what is written counts as theirs."""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from scheduler import rate_limits
from scheduler.errors import RateLimitError
from scheduler.models import JoinToken, Node
from scheduler.node_api import auth
from trainer import protocol

HOURS = 24.0


def token(user: AbstractBaseUser | None = None) -> str:
    """Return a join token for one machine of a volunteer."""
    made = auth.create_join_token(owner=user, hours=HOURS)
    JoinToken.objects.filter(token_hash=auth.hash_token(made)).update(for_packets=True)
    return made


def volunteer(address: str, message: protocol.RegisterVolunteer) -> tuple[Node, str]:
    """Let in a machine of somebody without an account; return it with its own token. Raise SlowDown.

    `address`: of whoever asks.
    """
    if not rate_limits.is_within_rate_limit("volunteer", address):
        raise RateLimitError("Many machines have joined from this address lately: please try again in an hour.")
    register = protocol.Register(version=message.version, name=message.name, hardware=message.hardware)
    with transaction.atomic():
        return auth.register_node(token(), register)
