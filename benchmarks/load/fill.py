"""Adds nodes to a database: those that train, each with a run and a lease, and idle ones. Prints tokens and pages."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from leaderboard.models import Entry, Run, Season, Track  # noqa: E402
from scheduler import node_health, node_tokens, storage  # noqa: E402
from scheduler.models import Job, Lease, Node  # noqa: E402
from trainer import protocol  # noqa: E402

LIMITS = {"wall_seconds": 86400.0, "memory_bytes": 2**30, "disk_bytes": 2**30, "processes": 64}
WAITING_JOBS = 500
"""Of 100 authors and 10 lengths, so that a poll reads up to 500 groups."""
NODES_PER_IDLE_NODE = 10


def create_nodes(first: int, count: int, track: Track) -> list[dict[str, object]]:
    """Create nodes, each with an entry whose run it trains; return the lease and its token of each."""
    numbers = range(first, first + count)
    now, release = timezone.now(), storage.store_bytes(b"a release")
    nodes = Node.objects.bulk_create(
        Node(name=f"node-{number:06}", state=Node.State.ONLINE, token_hash=f"{number:064}", last_seen=now)
        for number in numbers
    )
    jobs = Job.objects.bulk_create(
        Job(
            kind="train", state=Job.State.LEASED, attempts=1, author=f"author-{number % 100}", track=track.slug,
            release=release, limits=LIMITS, expected_seconds=86400.0,
        )
        for number in numbers
    )  # fmt: skip
    entries = Entry.objects.bulk_create(
        Entry(
            track=track, kind="pull", state="approved", title=f"Idea {number}", architecture="gpt",
            repository="https://example.org/train.git", sha=f"{number:040x}", author=f"author-{number % 100}",
        )
        for number in numbers
    )  # fmt: skip
    Run.objects.bulk_create(
        Run(
            entry=entry, track=track, season=track.season, budget=track.budget, seed=1, job=job,
            state=Run.State.TRAINING, started_at=now, node_name=node.name, node_class="1 x H100",
        )
        for entry, job, node in zip(entries, jobs, nodes, strict=True)
    )  # fmt: skip
    tokens = [node_tokens.generate_token("lease") for _ in numbers]
    leases = Lease.objects.bulk_create(
        Lease(
            job=job, node=node, attempt=1, token_hash=node_tokens.hash_token(token), started_at=now,
            expires_at=now + timedelta(days=1), heartbeat_at=now,
        )
        for job, node, token in zip(jobs, nodes, tokens, strict=True)
    )  # fmt: skip
    return [{"lease": lease.pk, "token": token} for lease, token in zip(leases, tokens, strict=True)]


def create_idle_nodes(first: int, count: int) -> list[dict[str, object]]:
    """Create nodes that fit no waiting job; return the token and the poll of each."""
    hardware = protocol.Hardware(
        hostname="idle", platform="Linux", python="3.11", cpus=16, memory_bytes=64 * 10**9, disk_free_bytes=10**12,
        gpus=("GPU",), gpu_details=(protocol.Gpu(name="GPU", memory_bytes=8 * 10**9),), sandboxes=("bubblewrap",),
    )  # fmt: skip
    facts, tokens, nodes = hardware.model_dump(mode="json"), [], []
    for number in range(first, first + count):
        tokens.append(node_tokens.generate_token("node"))
        token_hash = node_tokens.hash_token(tokens[-1])
        node = Node(name=f"idle-{number:06}", state=Node.State.ONLINE, token_hash=token_hash, hardware=facts)
        node.self_tests = {"0": {**node_health.build_test_key(node), "passed": True}}
        nodes.append(node)
    Node.objects.bulk_create(nodes)
    return [{"token": token, "poll": protocol.encode_message(protocol.Poll(hardware=hardware))} for token in tokens]


def create_waiting_jobs(count: int) -> None:
    release = storage.store_bytes(b"a release")
    Job.objects.bulk_create(
        Job(
            kind="train", author=f"author-{number % 100}", track="small", release=release, limits=LIMITS,
            expected_seconds=3600.0 * (1 + number % 10), needs_gpus=1, needs_gpu_memory_bytes=80 * 10**9,
        )
        for number in range(count)
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first one: how many there are already (0)")
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    call_command("install_schedule", verbosity=0)
    data = {"corpus": "fineweb-edu", "tokenizer": "gpt2", "dataset_hash": "9f2c" * 16}
    season, _ = Season.objects.get_or_create(name="Season 1", defaults=data)
    values = {"name": "Small", "season": season, "budget": "1e13flops", "expected_seconds": 100.0}
    track, _ = Track.objects.get_or_create(slug="small", defaults={**values, "is_default": True, "is_traced": False})
    leases = create_nodes(options.first, options.nodes, track)
    idle = create_idle_nodes(options.first, max(1, options.nodes // NODES_PER_IDLE_NODE))
    if not options.first:
        create_waiting_jobs(WAITING_JOBS)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    runs = Run.objects.order_by("pk").values_list("pk", flat=True)[:50]
    pages = [
        "/",
        "/queue/",
        "/api/v1/runs",
        *(f"/runs/{run}/" for run in runs),
        *(f"/runs/{run}/live.json" for run in runs),
    ]
    print(json.dumps({"leases": leases, "idle": idle, "pages": pages}))  # noqa: T201


if __name__ == "__main__":
    main()
