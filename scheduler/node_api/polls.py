"""Polls: a node requests a job; the server may hold the request open and sets the next poll's time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from django.utils import timezone

from scheduler import (
    job_groups,
    last_seen,
    lease_sweeper,
    leases,
    matching,
    node_health,
    node_slots,
    node_tokens,
    node_vetting,
    poll_queries,
    pool,
    self_tests,
)
from scheduler.models import Job, Node, Window
from trainer import protocol

MIN_HELD_SECONDS = 1.0
"""A node that would wait for less polls later."""
IDLE_SECONDS = 5.0
PAUSE_SECONDS = 30.0


@dataclass
class PollSession:
    """One node's poll while the request is open."""

    node: Node
    message: protocol.Poll
    queue_read_at: datetime | None = None
    """Read time of the queue that was last searched for this poll."""
    idle_reason: str = field(default="The queue is empty.")
    windows: list[Window] | None = None

    def check(self, buffer: last_seen.LastSeenBuffer | None = None) -> protocol.PollReply | None:
        """Record the poll and return the reply; None if the node may wait. `buffer`: see `pool.record_poll`."""
        now, message = timezone.now(), self.message
        pool.record_poll(self.node, message.hardware, message.health, message.lanes_wished, buffer)
        lease_sweeper.SWEEPER.sweep_if_due(now)
        if lease := lease_sweeper.release_stale_leases(self.node, message, now):
            return build_idle_reply(
                IDLE_SECONDS, f"This node still holds lease {lease.pk}. It ends when its heartbeats stop."
            )
        return self.check_node(now) or self.claim_job(now)

    def check_again(self) -> protocol.PollReply | None:
        """Return the reply of a waiting poll, if there is one now. Two queries while no job is queued."""
        now = timezone.now()
        try:
            self.node.refresh_from_db()
        except Node.DoesNotExist:
            return protocol.PollReply(action="stop", reason="This node was removed from the site.")
        self.node.hardware = self.message.hardware.model_dump(mode="json")  # perhaps not saved yet
        if reply := self.check_node(now):
            return reply
        return self.claim_job(now) if self.queue_read_at is None or has_new_jobs(self.queue_read_at) else None

    def check_node(self, now: datetime) -> protocol.PollReply | None:
        """Return the reply to a node that may take no job now, or None. Raises ApiError if it is banned."""
        node, message = self.node, self.message
        node_tokens.check_not_banned(node)
        node_tokens.check_not_revoked(node)
        if node.state == Node.State.DRAINING:
            reason = node.reason or "This node is drained: it takes no more jobs."
            return protocol.PollReply(action="stop", reason=reason)
        if node.state == Node.State.PAUSED:
            reason = node.reason or "This node is paused."
            return protocol.PollReply(action="pause", wait_seconds=PAUSE_SECONDS, reason=reason)
        if node.state == Node.State.FAILING and not node_health.is_self_test_due(node, message.lane):
            return protocol.PollReply(
                action="pause", wait_seconds=PAUSE_SECONDS, reason=node_health.describe_failure(node)
            )
        if node.rest_until and node.rest_until > now:
            seconds = min((node.rest_until - now).total_seconds(), PAUSE_SECONDS)
            return build_idle_reply(
                seconds, f"{node.failures} jobs in a row failed here for reasons of this machine: it rests a while."
            )
        if message.lanes is not None and message.lanes != node.slots:
            # Its owner changed the number of slots, or the node has just started: it divides itself before it works.
            return protocol.PollReply(
                action="idle", lanes=node.slots, reason=f"It is to do {node.slots} jobs at a time."
            )
        if message.health is not None and message.health.trouble:
            return build_idle_reply(IDLE_SECONDS, message.health.trouble)
        if until := node_vetting.get_quota_reset(node, now):
            return build_idle_reply(PAUSE_SECONDS, node_vetting.describe_quota(node, until))
        return self.check_lending_time(now)

    def check_lending_time(self, now: datetime) -> protocol.PollReply | None:
        if self.build_node_slot(now).seconds_left != 0:
            return None
        opens = node_slots.find_next_opening(self.node, now, self.windows)
        seconds = min((opens - now).total_seconds(), PAUSE_SECONDS) if opens else PAUSE_SECONDS
        zone = node_slots.get_time_zone(self.node)
        again = f" It is again from {opens.astimezone(zone):%A, %H:%M} ({zone})." if opens else ""
        return build_idle_reply(seconds, f"Its owner does not lend this node just now.{again}")

    def claim_job(self, now: datetime) -> protocol.PollReply | None:
        """Lease a self-test if the slot has to prove itself, otherwise the job of the queue that fits best."""
        if node_health.is_self_test_due(self.node, self.message.lane):
            test = self_tests.lease_self_test(self.node, self.message.lane)
            if test is None:
                return None
            return protocol.PollReply(action="job", lease=test, disk_bytes=self.node.disk_bytes)
        queue = job_groups.get_queue(now)
        self.queue_read_at = queue.read_at
        node_slot = self.build_node_slot(now)
        if lease := leases.claim_job(self.node, self.message.lane, queue=queue, node_slot=node_slot):
            return protocol.PollReply(action="job", lease=lease, disk_bytes=self.node.disk_bytes)
        self.idle_reason = queue.explain_idle(node_slot)
        return None

    def build_node_slot(self, now: datetime) -> matching.NodeSlot:
        """Return the polling slot. Its owner's windows are read once for each poll."""
        if self.windows is None:
            self.windows = poll_queries.load_windows(self.node)
        message = self.message
        return node_slots.build_node_slot(self.node, now, slot=message.lane, slots=message.lanes, windows=self.windows)

    def may_have_job(self, newest: datetime | None) -> bool:
        """Return whether matching finds a job. No query but those of the shared queue.

        `newest`: when the newest waiting job was queued.
        """
        if newest is None or (self.queue_read_at and newest <= self.queue_read_at - job_groups.MAX_CLOCK_SKEW):
            return False
        now = timezone.now()
        queue, node_slot = job_groups.get_queue(now), self.build_node_slot(now)
        if next(queue.find_fitting(node_slot), None) is not None:
            return True
        self.queue_read_at, self.idle_reason = queue.read_at, queue.explain_idle(node_slot)
        return False

    def build_no_job_reply(self, *, was_held: bool = True) -> protocol.PollReply:
        """Return the reply when there is no job. A node whose request was held open polls again at once."""
        is_held = was_held and self.message.wait_seconds >= MIN_HELD_SECONDS
        reply = build_idle_reply(0 if is_held else IDLE_SECONDS, self.idle_reason)
        return reply.model_copy(update={"disk_bytes": self.node.disk_bytes})


def has_new_jobs(since: datetime) -> bool:
    return Job.objects.filter(state=Job.State.QUEUED, state_since__gt=since - job_groups.MAX_CLOCK_SKEW).exists()


def build_idle_reply(wait_seconds: float, reason: str) -> protocol.PollReply:
    return protocol.PollReply(action="idle", wait_seconds=wait_seconds, reason=reason)
