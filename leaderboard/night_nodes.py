"""Nights run on trusted and vetted nodes, as long as one is online that could run them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from django.db.models import Q
from django.utils import timezone

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
    return sum(set_needs_vetted(job, any(can_run(job, slot) for slot in slots)) for job in jobs)


def can_run(job: Job, slot: matching.NodeSlot) -> bool:
    group = replace(job_groups.build_group_from_job(job), needs_vetted=True)
    return matching.find_obstacle(group, slot) is None


def set_needs_vetted(job: Job, needed: bool) -> int:
    """Change the column of a queued job. A process that has read the queue reads jobs again whose state is newer."""
    changed = Job.objects.filter(pk=job.pk, state=Job.State.QUEUED, needs_vetted=not needed)
    return changed.update(needs_vetted=needed, state_since=timezone.now())
