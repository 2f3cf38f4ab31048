"""Tokens of nodes and leases, and the join tokens with which nodes register.

A token is shown once and stored as its SHA-256. It has 256 random bits, so a plain hash is enough. The timing of the
lookup by an index reveals nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import timedelta
from hmac import compare_digest
from typing import Literal

from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from scheduler import rate_limits
from scheduler.errors import ForbiddenError, UnauthorizedError
from scheduler.models import SITE_ACTOR, Event, JoinToken, Lease, Node
from trainer import protocol

TokenKind = Literal["join", "node", "lease"]

JOIN_TOKEN_HOURS = 24.0
JOIN_RETRY_PERIOD = timedelta(minutes=15)
"""Time during which the same node may repeat its registration, in case the reply was lost."""


def generate_token(kind: TokenKind) -> str:
    """Return a new token. Secret scanners find it by its prefix."""
    return f"dtn_{kind}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """Return the hash that is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


# --- joining -------------------------------------------------------------------------------------------------------


def create_join_token(
    *,
    trusted: bool = False,
    labels: Sequence[str] = (),
    hours: float = JOIN_TOKEN_HOURS,
    owner: AbstractBaseUser | None = None,
    renews: Node | None = None,
    for_packets: bool = False,
) -> str:
    """Return a token with which one node registers, once. With `renews` that node registers again as itself.

    `for_packets`: the node gets packets and no other jobs.
    """
    token = generate_token("join")
    JoinToken.objects.create(
        token_hash=hash_token(token),
        trusted=trusted,
        labels=list(labels),
        owner=owner,  # type: ignore[misc]
        renews=renews,
        for_packets=for_packets,
        expires_at=timezone.now() + timedelta(hours=hours),
    )
    return token


def register_node(token: str, message: protocol.Register) -> tuple[Node, str]:
    """Register a node; return it and its token. A join token is used up by exactly one node."""
    now = timezone.now()
    try:
        with transaction.atomic():
            joins = JoinToken.objects.select_related("renews__owner", "used_by", "owner")
            join = joins.filter(token_hash=hash_token(token)).first()
            if join is None:
                raise UnauthorizedError("This join token is unknown. Ask a maintainer for a new one.")
            if join.expires_at < now:
                raise UnauthorizedError("This join token has expired. Ask a maintainer for a new one.")
            check_owner_active(join.renews.owner if join.renews else join.owner)
            node = join.used_by or join.renews or create_node(join, message)
            free = Q(used_at=None)
            if join.used_by and join.used_by.state == Node.State.NEW and is_same_machine(join.used_by, message):
                free |= Q(used_at__gt=now - JOIN_RETRY_PERIOD)
            used = JoinToken.objects.filter(free, pk=join.pk).update(used_at=now, used_by=node)
            if not used:
                raise UnauthorizedError("This join token was used already. Each registers one node. Ask for a new one.")
            return node, issue_node_token(node, join, message)
    except IntegrityError:
        raise UnauthorizedError("Another node took this name at the same moment. Try again.") from None


def is_same_machine(node: Node, message: protocol.Register) -> bool:
    """Return whether the machine describes itself as when the node registered first."""
    hardware = message.hardware.model_dump(mode="json")
    return all(node.hardware.get(name) == hardware[name] for name in ("platform", "cpus", "memory_bytes", "gpus"))


def create_node(join: JoinToken, message: protocol.Register) -> Node:
    return Node.objects.create(
        name=find_free_name(message.name.strip() or message.hardware.hostname[:80].strip() or "node"),
        owner=join.owner,
        trusted=join.trusted,
        packets=Node.Packets.ONLY if join.for_packets else Node.Packets.NEVER,
    )


def find_free_name(name: str) -> str:
    stem = name[:74]  # a name has 80 characters at most
    taken = set(Node.objects.filter(name__startswith=stem).values_list("name", flat=True))
    candidates = (name, *(f"{stem}-{number}" for number in range(2, len(taken) + 3)))
    return next(candidate for candidate in candidates if candidate not in taken)


def issue_node_token(node: Node, join: JoinToken, message: protocol.Register) -> str:
    """Return a new token of the node; its old one is invalid from now on."""
    token = generate_token("node")
    owner_labels = sorted({*node.owner_labels, *join.labels, *message.labels})
    Node.objects.filter(pk=node.pk).update(
        token_hash=hash_token(token),
        labels=sorted({*owner_labels, *message.hardware.found_labels}),
        owner_labels=owner_labels,
        hardware=message.hardware.model_dump(mode="json"),
    )
    node.refresh_from_db()
    actor = join.owner.get_username() if join.owner else SITE_ACTOR
    Event.record(actor, node, f"{node.name} joined{' as a trusted node' if node.trusted else ''}.")
    return token


# --- authentication ---------------------------------------------------------------------------------------------------


def authenticate_node(token: str) -> Node:
    """Return the node of this token. Raises UnauthorizedError or ForbiddenError."""
    node = Node.objects.filter(token_hash=hash_token(token)).select_related("owner").first()
    if node is None:
        if token.startswith("dtn_lease_"):
            raise ForbiddenError("This is a lease's token. This call needs the node's token.")
        if token.startswith("dtn_join_"):
            raise ForbiddenError("This is a join token. Register with it first.")
        raise UnauthorizedError("This node's token is unknown or revoked. Register again with a new join token.")
    check_not_banned(node)
    return node


def authenticate_lease(token: str, lease_id: int) -> Lease:
    """Return the lease of this token, active or not. Raises UnauthorizedError, ForbiddenError, RateLimitError."""
    hashed = hash_token(token)
    lease = Lease.objects.select_related("node__owner", "job").filter(pk=lease_id).first()
    if lease is None or not compare_digest(lease.token_hash, hashed):
        if token.startswith(("dtn_node_", "dtn_join_")):
            raise ForbiddenError("This call needs the lease's token, not the node's.")
        if Lease.objects.filter(token_hash=hashed).exists():
            raise ForbiddenError("This token belongs to another lease.")
        raise UnauthorizedError("This lease's token is unknown.")
    check_not_revoked(lease.node)
    check_not_banned(lease.node)
    rate_limits.check_rate_limit("lease", str(lease.pk))
    return lease


def check_not_revoked(node: Node) -> None:
    if node.token_hash is None:
        raise UnauthorizedError(
            "This node's token was revoked. Stop the job: nothing more is accepted. Register again with a new token."
        )


def check_not_banned(node: Node) -> None:
    if node.state == Node.State.BANNED:
        raise ForbiddenError(f"This node is banned: {node.reason or 'ask a maintainer why'}")
    check_owner_active(node.owner)


def check_owner_active(owner: AbstractBaseUser | None) -> None:
    """Raises ForbiddenError if the account is deactivated."""
    if owner is not None and not owner.is_active:
        raise ForbiddenError("The account of this node's owner is deactivated.")


# --- revocation -------------------------------------------------------------------------------------------------------


@transaction.atomic
def revoke_node_token(node: Node, actor: str) -> bool:
    """Revoke the node's token and join tokens; return whether it had a token. Its leases expire."""
    expire_join_tokens(node)
    revoked = Node.objects.filter(pk=node.pk, token_hash__isnull=False).update(token_hash=None)
    node.refresh_from_db()
    if revoked:
        Event.record(actor, node, f"The token of {node.name} was revoked.")
    return revoked == 1


def expire_join_tokens(node: Node) -> None:
    """Expire the node's join tokens now, also a used one that could be used again."""
    now = timezone.now()
    JoinToken.objects.filter(Q(renews=node) | Q(used_by=node), expires_at__gt=now).update(expires_at=now)
