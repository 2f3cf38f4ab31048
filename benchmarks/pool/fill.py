"""Fills a database with nodes, waiting jobs and a week of leases. Prints the nodes' tokens.

Half of the nodes fit a job. The GPUs of the others are too small for every job, so their polls search the whole queue.
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import timedelta

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.test.utils import CaptureQueriesContext, override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402

from scheduler import last_seen, node_health, node_tokens, storage  # noqa: E402
from scheduler.models import Blob, Job, Lease, Node, Window  # noqa: E402
from scheduler.node_api import polls  # noqa: E402
from trainer import protocol  # noqa: E402

GB = 10**9
AUTHORS = 1000
TRACKS = (("small", 1, 16, 3600.0), ("daily", 1, 24, 5400.0), ("pair", 2, 24, 20000.0), ("big", 8, 80, 43000.0))
"""Slug, GPUs, gigabytes of each, seconds."""
LIMITS = {"wall_seconds": 86400.0, "memory_bytes": GB, "disk_bytes": GB, "processes": 64}


def build_hardware(gpus: int, memory_gb: int) -> protocol.Hardware:
    card = protocol.Gpu(name="GPU", memory_bytes=memory_gb * GB)
    return protocol.Hardware(
        hostname="node", platform="Linux", python="3.11", cpus=16, memory_bytes=64 * GB, disk_free_bytes=900 * GB,
        gpus=("GPU",) * gpus, sandboxes=("bubblewrap",), gpu_details=(card,) * gpus,
        found_labels=(f"{gpus}x{memory_gb}gb", "500gb"),
    )  # fmt: skip


def add_nodes(count: int) -> list[dict[str, object]]:
    """Create nodes; return the token and hardware of each. Every second GPU is too small for every job."""
    rows, nodes_data = [], []
    for number in range(count):
        able = number % 2 == 0
        found = build_hardware(1, 24) if able else build_hardware(1, 8)
        token = node_tokens.generate_token("node")
        rows.append(
            Node(
                name=f"node-{number:06}", state=Node.State.ONLINE, token_hash=node_tokens.hash_token(token),
                hardware=found.model_dump(mode="json"), labels=sorted(found.found_labels), last_seen=timezone.now(),
                available=Node.Available.WINDOWS if number % 3 == 0 else Node.Available.ALWAYS,
            )
        )  # fmt: skip
        rows[-1].self_tests = {"0": {**node_health.build_test_key(rows[-1]), "passed": True}}
        nodes_data.append({"token": token, "able": able, "hardware": found.model_dump(mode="json")})
    nodes = Node.objects.bulk_create(rows, batch_size=1000)
    Window.objects.bulk_create(
        [
            Window(node=node, weekday=day, start="00:00", end="00:00")
            for node in nodes
            if node.available == Node.Available.WINDOWS
            for day in range(7)
        ],
        batch_size=5000,
    )
    return nodes_data


def add_jobs(count: int, release: Blob, draw: random.Random) -> None:
    now, rows = timezone.now(), []
    for _ in range(count):
        slug, gpus, memory_gb, seconds = draw.choice(TRACKS)
        queued = now - timedelta(seconds=draw.uniform(0, 5 * 86400))
        rows.append(
            Job(
                kind="train", priority=draw.choice((30, 40, 40, 40, 50)), impact=draw.choice((0, 0, 0, 1)),
                expected_seconds=seconds, author=f"author-{draw.randrange(AUTHORS):04}", track=slug, needs_gpus=gpus,
                needs_gpu_memory_bytes=memory_gb * GB, checkpoint_seconds=1800, release=release, limits=LIMITS,
                queued_at=queued, state_since=queued,
            )
        )  # fmt: skip
    Job.objects.bulk_create(rows, batch_size=2000)


def add_past(leases: int, release: Blob, draw: random.Random) -> None:
    """Create finished jobs of the last week with their leases."""
    now, nodes = timezone.now(), list(Node.objects.values_list("pk", flat=True))
    jobs = Job.objects.bulk_create(
        [
            Job(kind="train", state=Job.State.DONE, author=f"author-{draw.randrange(AUTHORS):04}", release=release)
            for _ in range(leases)
        ],
        batch_size=2000,
    )
    rows = []
    for number, job in enumerate(jobs):
        began = now - timedelta(seconds=draw.uniform(86400, 7 * 86400))
        ended = began + timedelta(hours=1)
        rows.append(
            Lease(
                job=job, node_id=draw.choice(nodes), attempt=1, state=Lease.State.FINISHED, token_hash=f"{number:064}",
                started_at=began, expires_at=ended, ended_at=ended, heartbeat_at=ended, seconds=3600, outcome="done",
            )
        )  # fmt: skip
    Lease.objects.bulk_create(rows, batch_size=2000)


def count_poll_queries(nodes_data: list[dict[str, object]]) -> dict[str, int]:
    """Return the number of queries of a poll that gets a job and of one that does not."""
    counts = {}
    for able in (True, False):
        one = next(node for node in nodes_data if node["able"] is able)
        message = protocol.Poll(hardware=protocol.Hardware.model_validate(one["hardware"]), wait_seconds=0, lanes=1)
        with override_settings(QUEUE_READ_SECONDS=0), CaptureQueriesContext(connection) as captured:
            polls.PollSession(node_tokens.get_node_by_token(str(one["token"])), message).check(
                last_seen.LastSeenBuffer()
            )
        counts["job" if able else "none"] = len(captured)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    draw, release = random.Random(1), storage.store_bytes(b"a release")
    nodes_data = add_nodes(options.nodes)
    add_jobs(options.jobs // 100, release, draw)
    few = count_poll_queries(nodes_data[:2])
    add_jobs(options.jobs - options.jobs // 100, release, draw)
    add_past(2 * options.nodes, release, draw)
    many = count_poll_queries(nodes_data[2:4])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    print(json.dumps({"nodes": nodes_data[4:], "queries": {"short_queue": few, "long_queue": many}}))  # noqa: T201


if __name__ == "__main__":
    main()
