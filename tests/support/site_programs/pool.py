from __future__ import annotations

import base64
from typing import Any

from scheduler import node_tokens, storage
from scheduler.models import Job, Lease
from scheduler.sponsors import contributions


def create_pool(release: str, jobs: int, agents: int, steps: int, pace: float, every: int) -> list[str]:
    """Queue jobs that run the release (a tar file in base64) and return a join token for each agent."""
    blob = storage.store_bytes(base64.b64decode(release))
    for number in range(jobs):
        Job.objects.create(
            kind="train",
            release=blob,
            author=f"author-{number % 5}",
            expected_seconds=2 + number % 3,
            checkpoint_seconds=0.5,
            needs_sandbox=False,
            max_attempts=1000,
            limits={"wall_seconds": 600, "memory_bytes": 10**9, "disk_bytes": 2 * 10**7, "processes": 8},
            result={"steps": steps, "pace": pace, "every": every},
        )
    return [node_tokens.create_join_token() for _ in range(agents)]


def read_pool() -> dict[str, Any]:
    """Return every job, every lease and the credit of every node."""
    leases = [
        {
            "job": lease.job_id,
            "node": lease.node_id,
            "state": lease.state,
            "seconds": lease.seconds,
            "heard": (lease.heartbeat_at or lease.started_at).timestamp(),
            "machine_fault": lease.machine_fault,
            "gpus": lease.gpus,
            "accelerator": lease.accelerator,
            "began": lease.started_at.timestamp(),
            "ended": lease.ended_at and lease.ended_at.timestamp(),
        }
        for lease in Lease.objects.order_by("job_id", "started_at")
    ]
    credited = {
        node: {"gpu_seconds": given.gpu_seconds, "cpu_seconds": given.cpu_seconds, "credit_hours": given.credit_hours}
        for node, given in contributions.sum_leases_by_node(Lease.objects.all()).items()
    }
    jobs = list(Job.objects.order_by("pk").values("id", "state", "reason", "attempts"))
    return {"jobs": jobs, "leases": leases, "credited": credited}
