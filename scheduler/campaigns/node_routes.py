"""Node API of the dataset swarm: register a volunteer, take packets and submit them."""

from __future__ import annotations

import math

from django.db import transaction
from django.http import HttpRequest
from ninja import Router

from scheduler import node_tokens, rate_limits, signing
from scheduler.campaigns import assignment, submission
from scheduler.errors import RateLimitError
from scheduler.node_api.routes import ERRORS, LeaseToken, NodeRequest
from trainer import protocol

router = Router()


@router.post("/volunteer", response={200: protocol.RegisterReply, **ERRORS})
def register_volunteer(request: HttpRequest, message: protocol.RegisterVolunteer) -> protocol.RegisterReply:
    """Register a machine without an account, for packets only."""
    if not rate_limits.is_within_rate_limit("volunteer", request.META.get("REMOTE_ADDR", "")):
        minutes = math.ceil(rate_limits.get_retry_after("volunteer") / 60)
        problem = f"Too many machines joined from this IP address. Try again in {minutes} min."
        raise RateLimitError(problem, limit="volunteer")
    is_named = message.name.strip() not in ("", message.hardware.hostname)  # the host's name is not for the public
    name = message.name if is_named else "volunteer"
    register = protocol.Register(version=message.version, name=name, hardware=message.hardware)
    with transaction.atomic():
        node, token = node_tokens.register_node(node_tokens.create_join_token(for_packets=True), register)
    return protocol.RegisterReply(node=node.pk, token=token, public_key=signing.get_public_key())


@router.post(
    "/leases/{int:lease_id}/packets/take",
    auth=LeaseToken(),
    response={200: protocol.TakePacketsReply, **ERRORS},
    exclude_none=True,
)
def take_packets(request: NodeRequest, lease_id: int, message: protocol.TakePackets) -> protocol.TakePacketsReply:
    """Return the next packets, and those that the lease holds but the volunteer does not name."""
    return assignment.take_packets(request.auth, message)


@router.post(
    "/leases/{int:lease_id}/packets/submit",
    auth=LeaseToken(),
    response={200: protocol.SubmitPacketsReply, **ERRORS},
    exclude_none=True,
)
def submit_packets(request: NodeRequest, lease_id: int, message: protocol.SubmitPackets) -> protocol.SubmitPacketsReply:
    """Check rephrased packets and return verdicts. Each packet counts once; a repeat gets the same verdict."""
    return submission.submit_packets(request.auth, message)
