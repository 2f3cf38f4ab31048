"""A node asks what to do, and the question may be held open for a while. The server sets the pace."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.utils import timezone

from scheduler import job_groups, lease_sweeper, leases, matching, node_quota, node_slots, pool
from scheduler.models import Job, Node, Window
from scheduler.node_api import auth, last_seen
from trainer import protocol

SHORTEST_WAIT = 1.0
"""Seconds. Who wants to wait for less is told to ask later."""
BUSY_SECONDS = 5.0
PAUSE_SECONDS = 30.0
CLOCKS_DIFFER = timedelta(seconds=2)


class Patrol:
    """The background work may be down, and must not hold up the queue: questions see to expired leases too, one of them
    in each `settings.QUEUE_READ_SECONDS` for all of this process."""

    def __init__(self) -> None:
        self._last = datetime.min.replace(tzinfo=UTC)

    def see_to_expired(self, now: datetime) -> None:
        if timedelta() <= now - self._last < timedelta(seconds=settings.QUEUE_READ_SECONDS):
            return
        self._last = now
        if lease_sweeper.EXPIRED.tuples(now=now):
            lease_sweeper.sweep_leases(now)


PATROL = Patrol()


@dataclass
class Question:
    """One node's question, while it is open."""

    node: Node
    message: protocol.Poll
    looked_at: datetime | None = None
    """When the queue was last looked through."""
    idle_reason: str = field(default="The queue is empty.")
    windows: list[Window] | None = None

    def first(self, notes: last_seen.Notes | None = None) -> protocol.PollReply | None:
        """Look once, thoroughly; return the answer, or None where waiting may help. `notes`: see `pool.greet`."""
        now = timezone.now()
        message = self.message
        pool.record_poll(self.node, message.hardware, message.health, message.lanes_wished, notes)
        PATROL.see_to_expired(now)
        if held := lease_sweeper.release_stale_leases(self.node, self.message, now):
            return idle(BUSY_SECONDS, f"This node still holds lease {held.pk}; it ends when it is not heard of.")
        return self.not_now(now) or self.look(now)

    def again(self) -> protocol.PollReply | None:
        """Look again, cheaply: through the queue only if something has come into it. Two queries where nothing has."""
        now = timezone.now()
        try:
            self.node.refresh_from_db()
        except Node.DoesNotExist:
            return protocol.PollReply(action="stop", reason="This node was removed from the site.")
        self.node.hardware = self.message.hardware.model_dump(mode="json")  # perhaps not written down yet
        if answer := self.not_now(now):
            return answer
        return self.look(now) if self.looked_at is None or stirred(self.looked_at) else None

    def not_now(self, now: datetime) -> protocol.PollReply | None:
        """Return the answer for a node that is to get no work at all."""
        node = self.node
        auth.check_not_banned(node)
        auth.check_not_revoked(node)
        if node.state == Node.State.DRAINING:
            return protocol.PollReply(
                action="stop", reason=node.reason or "This node is drained: it takes no more jobs."
            )
        if node.state == Node.State.PAUSED:
            return protocol.PollReply(
                action="pause", wait_seconds=PAUSE_SECONDS, reason=node.reason or "This node is paused."
            )
        if node.rest_until and node.rest_until > now:
            wait = min((node.rest_until - now).total_seconds(), PAUSE_SECONDS)
            return idle(
                wait, f"{node.failures} jobs in a row failed here for reasons of this machine: it rests a while."
            )
        if self.message.lanes is not None and self.message.lanes != node.lanes:
            # Its owner wishes otherwise, or the node has just begun: it shares itself out anew before it gets a job.
            return protocol.PollReply(
                action="idle", lanes=node.lanes, reason=f"It is to do {node.lanes} jobs at a time."
            )
        if self.message.health is not None and self.message.health.trouble:
            return idle(BUSY_SECONDS, self.message.health.trouble)
        if until := node_quota.get_quota_reset(node, now):
            return idle(PAUSE_SECONDS, node_quota.describe_quota(node, until))
        return self.not_lent(now)

    def not_lent(self, now: datetime) -> protocol.PollReply | None:
        """Return the answer for a node that its owner does not lend just now."""
        if self.seeker(now).seconds_left != 0:
            return None
        opens = node_slots.find_next_opening(self.node, now, self.windows)
        wait = min((opens - now).total_seconds(), PAUSE_SECONDS) if opens else PAUSE_SECONDS
        zone = node_slots.get_time_zone(self.node)
        again = f" It is again from {opens.astimezone(zone):%A, %H:%M} ({zone})." if opens else ""
        return idle(wait, f"Its owner does not lend this node just now.{again}")

    def look(self, now: datetime) -> protocol.PollReply | None:
        """Look through the queue for a job that fits."""
        queue = job_groups.get_queue(now)
        self.looked_at = queue.read_at
        seeker = self.seeker(now)
        if lease := leases.claim_job(self.node, self.message.lane, queue=queue, seeker=seeker):
            return protocol.PollReply(action="job", lease=lease)
        self.idle_reason = queue.why_idle(seeker)
        return None

    def seeker(self, now: datetime) -> matching.NodeSlot:
        """Return the lane that asks. Its owner's windows are read once for each question."""
        if self.windows is None:
            self.windows = node_slots.load_windows(self.node)
        message = self.message
        return node_slots.build_node_slot(self.node, now, lane=message.lane, lanes=message.lanes, lent=self.windows)

    def may_hope(self, newest: datetime | None) -> bool:
        """Whether matching has something for it now; `newest`: when the last job came into the queue. No query but
        those of a look that all share."""
        if newest is None or (self.looked_at and newest <= self.looked_at - CLOCKS_DIFFER):
            return False
        now = timezone.now()
        queue, seeker = job_groups.get_queue(now), self.seeker(now)
        if next(queue.fitting(seeker), None) is not None:
            return True
        self.looked_at, self.idle_reason = queue.read_at, queue.why_idle(seeker)
        return False

    def nothing(self, waited: bool = True) -> protocol.PollReply:
        """Return the answer when there is none. Whose question was held open asks again at once."""
        held = waited and self.message.wait_seconds >= SHORTEST_WAIT
        return idle(0 if held else BUSY_SECONDS, self.idle_reason)


def stirred(since: datetime) -> bool:
    """Return whether any job has come into the queue since then."""
    return Job.objects.filter(state=Job.State.QUEUED, state_since__gt=since - CLOCKS_DIFFER).exists()


def idle(wait_seconds: float, reason: str) -> protocol.PollReply:
    return protocol.PollReply(action="idle", wait_seconds=wait_seconds, reason=reason)
