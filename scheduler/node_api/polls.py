"""Polls: a node requests a job, and the reply sets the time of its next poll."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.utils import timezone

from scheduler import (
    job_groups,
    lease_sweeper,
    leases,
    node_health,
    node_slots,
    node_tokens,
    node_vetting,
    pool,
    self_tests,
)
from scheduler.models import Node
from trainer import protocol

PAUSE_SECONDS = 30.0
"""Until the next poll of a node that gets no job for now, whatever is queued."""


def answer_poll(node: Node, message: protocol.Poll) -> protocol.PollReply:
    """Record the poll and return the reply, perhaps with the job that fits best. Raises ApiError."""
    now = timezone.now()
    pool.record_poll(node, message.hardware, message.health, message.lanes_wished)
    lease_sweeper.sweep_if_due(now)
    if held := lease_sweeper.release_stale_leases(node, message, now):
        return build_idle_reply(f"This node still holds lease {held.pk}. It ends when its heartbeats stop.")
    return build_refusal(node, message, now) or assign_job(node, message, now)


def build_refusal(node: Node, message: protocol.Poll, now: datetime) -> protocol.PollReply | None:
    """Return the reply to a node that may take no job now, or None. Raises ApiError if it is banned."""
    node_tokens.check_not_banned(node)
    node_tokens.check_not_revoked(node)
    if node.state == Node.State.DRAINING:
        reason = node.reason or "This node is drained: it takes no more jobs."
        return protocol.PollReply(action="stop", reason=reason)
    if node.state == Node.State.PAUSED:
        reason = node.reason or "This node is paused."
        return protocol.PollReply(action="pause", wait_seconds=PAUSE_SECONDS, reason=reason)
    if node.state == Node.State.FAILING and not node_health.is_self_test_due(node, message.lane):
        reason = node_health.describe_failure(node)
        return protocol.PollReply(action="pause", wait_seconds=PAUSE_SECONDS, reason=reason)
    if node.rest_until and node.rest_until > now:
        reason = f"{node.failures} jobs in a row failed here for reasons of this machine: it rests a while."
        return build_idle_reply(reason, min((node.rest_until - now).total_seconds(), PAUSE_SECONDS))
    if message.lanes is not None and message.lanes != node.slots:
        # Its owner changed the number of slots, or the node has just started: it divides itself before it works.
        return protocol.PollReply(action="idle", lanes=node.slots, reason=f"It is to do {node.slots} jobs at a time.")
    if message.health is not None and message.health.trouble:
        return build_idle_reply(message.health.trouble)
    if until := node_vetting.get_quota_reset(node, now):
        return build_idle_reply(node_vetting.describe_quota(node, until), PAUSE_SECONDS)
    return None


def assign_job(node: Node, message: protocol.Poll, now: datetime) -> protocol.PollReply:
    """Lease a self-test if the slot has to prove itself, otherwise the job of the queue that fits best."""
    node_slot = node_slots.build_node_slot(node, now, slot=message.lane, slots=message.lanes)
    if node_slot.seconds_left == 0:
        opens, zone = node_slots.find_next_opening(node, now), node_slots.get_time_zone(node)
        again = f" It is again from {opens.astimezone(zone):%A, %H:%M} ({zone})." if opens else ""
        seconds = min((opens - now).total_seconds(), PAUSE_SECONDS) if opens else PAUSE_SECONDS
        return build_idle_reply(f"Its owner does not lend this node just now.{again}", seconds)
    if node_health.is_self_test_due(node, message.lane):
        lease, reason = self_tests.lease_self_test(node, message.lane), "This slot holds a lease already."
    else:
        queue = job_groups.load_queue(now)
        lease = leases.claim_job(node, message.lane, queue=queue, node_slot=node_slot)
        reason = "" if lease else queue.explain_idle(node_slot)
    reply = protocol.PollReply(action="job", lease=lease) if lease else build_idle_reply(reason)
    return reply.model_copy(update={"disk_bytes": node.disk_bytes})


def build_idle_reply(reason: str, wait_seconds: float | None = None) -> protocol.PollReply:
    """Return a reply without a job. `wait_seconds`: until the next poll; by default `settings.POLL_SECONDS`."""
    seconds = settings.POLL_SECONDS if wait_seconds is None else wait_seconds
    return protocol.PollReply(action="idle", wait_seconds=seconds, reason=reason)
