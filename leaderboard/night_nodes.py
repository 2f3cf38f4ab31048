"""Nights run on trusted and vetted nodes, as long as one is online that could run them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from django.db.models import Q

from leaderboard.models import Run
from scheduler import job_groups, matching, node_slots, node_vetting
from scheduler.models import Job, Node


def update_night_needs(now: datetime) -> int:
    """Let waiting nights require a node whose results are accepted if one could run them; return how many changed.

    A site without such a node trains its nights on any node: a night never waits for this.
    """
    nights = Run.objects.filter(Q(purpose=Run.Purpose.NIGHTLY) | Q(nights__isnull=False), state__in=Run.UNFINISHED)
    jobs = list(Job.objects.filter(run__in=nights, state=Job.State.QUEUED).distinct())
    if not jobs:
        return 0
    online = Node.objects.filter(Q(rest_until=None) | Q(rest_until__lte=now), state=Node.State.ONLINE)
    nodes = [node for node in online if node_vetting.is_result_accepted(node) and not node.health.get("trouble")]
    slots = [node_slots.build_node_slot(node, now, slot=slot) for node in nodes for slot in range(max(node.slots, 1))]
    changed = 0
    for job in jobs:
        needed = any(can_run(job, slot) for slot in slots)
        waiting = Job.objects.filter(pk=job.pk, state=Job.State.QUEUED, needs_vetted=not needed)
        # Free nodes that fit now get the time to poll (`preemption.FREE_SLOT_GRACE`).
        changed += waiting.update(needs_vetted=needed, state_since=now)
    return changed


def can_run(job: Job, slot: matching.NodeSlot) -> bool:
    group = replace(job_groups.build_group_from_job(job), needs_vetted=True)
    return matching.find_obstacle(group, slot) is None
