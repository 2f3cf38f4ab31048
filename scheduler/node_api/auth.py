"""Tokens of nodes and leases, and the join tokens with which nodes register.

A token is shown once and stored as its SHA-256. It has 256 random bits, so a plain hash is enough. It is looked up by
an index, whose timing tells a guess nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Literal

from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from scheduler import rate_limits
from scheduler.errors import ForbiddenError, UnauthorizedError
from scheduler.models import Event, JoinToken, Lease, Node
from trainer import protocol

TokenKind = Literal["join", "node", "lease"]

JOIN_TOKEN_HOURS = 24.0
JOIN_RETRY_PERIOD = timedelta(minutes=15)
"""So long a join token may be used again by the same node, should the answer to its registration have been lost."""


def generate_token(kind: TokenKind) -> str:
    """Return a fresh token. The prefix says what has leaked, and lets secret scanners find it."""
    return f"dtn_{kind}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


# --- joining -------------------------------------------------------------------------------------------------------


def create_join_token(
    *,
    trusted: bool = False,
    labels: Sequence[str] = (),
    hours: float = JOIN_TOKEN_HOURS,
    owner: AbstractBaseUser | None = None,
    renews: Node | None = None,
) -> str:
    """Return a token that lets one node in, once. With `renews` that node comes back as itself."""
    token = generate_token("join")
    JoinToken.objects.create(
        token_hash=hash_token(token),
        trusted=trusted,
        labels=list(labels),
        owner=owner,  # type: ignore[misc]
        renews=renews,
        expires_at=get_expiry(hours),
    )
    return token


def get_expiry(hours: float) -> datetime:
    return timezone.now() + timedelta(hours=hours)


def register_node(token: str, message: protocol.Register) -> tuple[Node, str]:
    """Let a node in; return it with its own token. A join token is used up by exactly one node."""
    now = timezone.now()
    try:
        with transaction.atomic():
            join = JoinToken.objects.filter(token_hash=hash_token(token)).select_related("renews", "used_by").first()
            if join is None:
                raise UnauthorizedError("This join token is not known here: ask the site's people for a new one.")
            if join.expires_at < now:
                raise UnauthorizedError("This join token has expired: ask the site's people for a new one.")
            node = join.used_by or join.renews or create_node(join, message)
            free = Q(used_at=None)
            if join.used_by and join.used_by.state == Node.State.NEW:
                free |= Q(used_at__gt=now - JOIN_RETRY_PERIOD)
            used = JoinToken.objects.filter(free, pk=join.pk).update(used_at=now, used_by=node)
            if not used:
                raise UnauthorizedError("This join token has been used: each lets one node in. Ask for a new one.")
            return node, issue_node_token(node, join, message)
    except IntegrityError:
        raise UnauthorizedError("Another node joined under this name at the same moment: try again.") from None


def create_node(join: JoinToken, message: protocol.Register) -> Node:
    return Node.objects.create(
        name=find_free_name(message.name.strip() or message.hardware.hostname or "node"),
        owner=join.owner,
        trusted=join.trusted,
        packets=Node.Packets.ONLY if join.for_packets else Node.Packets.NEVER,
    )


def find_free_name(wanted: str) -> str:
    """Return the name, or the name with the first number that nobody has."""
    taken = set(Node.objects.filter(name__startswith=wanted).values_list("name", flat=True))
    if wanted not in taken:
        return wanted
    return next(name for number in range(2, len(taken) + 3) if (name := f"{wanted[:74]}-{number}") not in taken)


def issue_node_token(node: Node, join: JoinToken, message: protocol.Register) -> str:
    """Give the node its token; whatever token it had is worth nothing from now on."""
    token = generate_token("node")
    wished = sorted({*node.owner_labels, *join.labels, *message.labels})
    Node.objects.filter(pk=node.pk).update(
        token_hash=hash_token(token),
        labels=sorted({*wished, *message.hardware.found_labels}),
        owner_labels=wished,
        hardware=message.hardware.model_dump(mode="json"),
    )
    node.refresh_from_db()
    who = join.owner.get_username() if join.owner else "site"
    Event.record(who, node, f"{node.name} joined{' as a trusted node' if node.trusted else ''}.")
    return token


# --- authentication ---------------------------------------------------------------------------------------------------


def authenticate_node(token: str) -> Node:
    """Return the node of this token. Raises UnauthorizedError, ForbiddenError, RateLimitError."""
    node = get_node_by_token(token)
    rate_limits.check_rate_limit("poll", str(node.pk))
    return node


def authenticate_lease(token: str, lease_id: int) -> Lease:
    """Return the lease of this token. Raises UnauthorizedError, ForbiddenError, RateLimitError."""
    lease = get_lease_by_token(token, lease_id)
    rate_limits.check_rate_limit("lease", str(lease.pk))
    return lease


def get_node_by_token(token: str) -> Node:
    """Return the node of this token, with the annotation `has_lease`. Raises UnauthorizedError or ForbiddenError."""
    active = Lease.objects.filter(node=OuterRef("pk"), state=Lease.State.ACTIVE)
    node = Node.objects.filter(token_hash=hash_token(token)).annotate(has_lease=Exists(active)).first()
    if node is None:
        if token.startswith("dtn_lease_"):
            raise ForbiddenError("This is the token of a lease, and this call needs the node's own.")
        if token.startswith("dtn_join_"):
            raise ForbiddenError("This is a join token: register with it first.")
        raise UnauthorizedError(
            "This node's token is not known here, or it was revoked: join again with a new join token."
        )
    check_not_banned(node)
    return node


def get_lease_by_token(token: str, lease_id: int) -> Lease:
    """Return the lease of this token, active or not. Raises UnauthorizedError or ForbiddenError."""
    hashed = hash_token(token)
    lease = Lease.objects.select_related("node", "job").filter(pk=lease_id).first()
    if lease is None or not compare_digest(lease.token_hash, hashed):
        if token.startswith(("dtn_node_", "dtn_join_")):
            raise ForbiddenError("This call needs the token of the lease, not the node's.")
        if Lease.objects.filter(token_hash=hashed).exists():
            raise ForbiddenError("This token belongs to another lease.")
        raise UnauthorizedError("This lease's token is not known here.")
    check_not_revoked(lease.node)
    check_not_banned(lease.node)
    return lease


def check_not_revoked(node: Node) -> None:
    if node.token_hash is None:
        raise UnauthorizedError(
            "This node's token was revoked: stop what runs, nothing more is taken. Join again with a new token."
        )


def check_not_banned(node: Node) -> None:
    if node.state == Node.State.BANNED:
        raise ForbiddenError(f"This node is banned: {node.reason or 'ask the people of the site why'}")


# --- revocation -------------------------------------------------------------------------------------------------------


@transaction.atomic
def revoke_node_token(node: Node, actor: str) -> bool:
    """Make the node's token worthless; return whether it had one. Its lease runs out by itself, unheard.

    So are the tokens with which it could join again.
    """
    expire_join_tokens(node)
    revoked = Node.objects.filter(pk=node.pk, token_hash__isnull=False).update(token_hash=None)
    node.refresh_from_db()
    if revoked:
        Event.record(actor, node, f"The token of {node.name} was revoked.")
    return revoked == 1


def expire_join_tokens(node: Node) -> None:
    """Let the node's join tokens expire now, also one whose answer may have been lost."""
    now = timezone.now()
    JoinToken.objects.filter(Q(renews=node) | Q(used_by=node), expires_at__gt=now).update(expires_at=now)
