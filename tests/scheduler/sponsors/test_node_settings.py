"""Owner settings of a node as matching constraints, checked over the node API from poll to release."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
import time_machine
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import job_groups, leases, node_slots
from scheduler.models import Job, Lease, Node, Window
from tests.support.pool import HARDWARE, LIMITS, Agent, ClaimedJob, create_job, create_node
from trainer import protocol
from trainer.accounting.training_size import CheckpointSizes, compute_upload_limits

pytestmark = pytest.mark.sql

GIB = 2**30


def build_hardware(*memory_gb: float, **facts: Any) -> protocol.Hardware:
    """Return hardware with one GPU for each given memory size in GB."""
    gpus = tuple(protocol.Gpu(name="GPU", memory_bytes=int(size * 1.07e9)) for size in memory_gb)
    return HARDWARE.model_copy(update={"gpus": tuple(gpu.name for gpu in gpus), "gpu_details": gpus, **facts})


def create_lent_agent(name: str, hardware: protocol.Hardware = HARDWARE, **owner_settings: Any) -> Agent:
    """Create a joined node with its owner's settings and return its agent."""
    return Agent(create_node(name, hardware=dict(hardware), **owner_settings)[1], hardware=hardware)


def finish_next_job(agent: Agent) -> str:
    """Poll once and finish the job; return the job's author, or the reason why there is no job."""
    action = agent.request_action()
    if action.lease is None:
        return action.reason
    claimed_job = ClaimedJob(agent, action.lease)
    author = claimed_job.job.author
    claimed_job.finish("done")
    return author


def finish_all_jobs(agent: Agent) -> set[str]:
    """Poll until no job is left for this node; return the jobs' authors."""
    authors = set()
    while (author := finish_next_job(agent)).islower():
        authors.add(author)
    return authors


# --- matching --------------------------------------------------------------------------------------------------------


def test_matching_uses_lent_disk_and_memory(db: None) -> None:
    create_job(author="disk", needs_disk_bytes=20 * GIB)
    create_job(author="memory", needs_memory_bytes=6 * GIB)
    small = create_lent_agent("small", disk_bytes=10 * GIB)
    assert finish_all_jobs(small) == {"memory"}
    assert "of free disk" in finish_next_job(small)
    assert small.request_action().disk_bytes == 10 * GIB, "the reply limits the node's caches"
    halves = create_lent_agent("halves", slots=2)
    assert halves.request_action(lanes=2, lane=0).action == "job"
    assert Job.objects.get(state=Job.State.LEASED).author == "disk"


# --- lending windows -------------------------------------------------------------------------------------------------


@time_machine.travel(datetime(2026, 3, 4, 12, tzinfo=UTC))  # a Wednesday, also in Kolkata
def test_node_outside_window_gets_next_opening(agent: Agent) -> None:
    create_job()
    node = Node.objects.get()
    Node.objects.update(available="windows", timezone="Asia/Kolkata")
    for weekday in (3, 4):
        Window.objects.create(node=node, weekday=weekday, start=time(9), end=time(17))
    action = agent.request_action()
    assert action.action == "idle"
    assert action.reason.startswith("Its owner does not lend this node just now. It is again from ")
    assert "09:00 (Asia/Kolkata)" in action.reason


def test_node_is_stopped_before_window_ends_and_job_resumes(agent: Agent) -> None:
    create_job(expected_seconds=36_000, checkpoint_seconds=60)
    Node.objects.update(available="until", available_until=timezone.now() + timedelta(hours=2))
    claimed_job = agent.claim_job()
    assert claimed_job.send_heartbeat().json()["stop"] == ""
    Node.objects.update(available_until=timezone.now() + timedelta(seconds=85))
    reply = claimed_job.send_heartbeat().json()
    assert (reply["stop"], reply["reason"]) == (
        "finish",
        "Its owner wants the machine back soon; the job goes on elsewhere.",
    )
    claimed_job.upload_checkpoint(7)
    assert claimed_job.finish("released", reason=reply["reason"]).status_code == 200
    assert agent.request_action().action == "idle"
    resumed_job = create_lent_agent("elsewhere").claim_job()
    assert isinstance(resumed_job.spec.order, protocol.TrainOrder)
    assert resumed_job.spec.order.resume
    assert resumed_job.spec.order.resume.step == 7
    assert resumed_job.job.failures == 0


@pytest.mark.parametrize(
    ("uploaded_bytes", "max_file_bytes", "enough", "too_few"),
    [
        (2 * 10**9, None, 60, 20),
        (10**9, None, 40, 22),  # 1,000 s at the guessed rate, and 500 s for the same weights in bf16: a milestone
        (0, compute_upload_limits(CheckpointSizes(2 * 10**9, 0, 0, 0)).file_bytes, 40, 34),  # 2,000 s
    ],
    ids=["last checkpoint", "with a milestone", "computed size of the first"],
)
def test_slow_upload_stops_job_earlier(
    agent: Agent, uploaded_bytes: int, max_file_bytes: int | None, enough: int, too_few: int
) -> None:
    create_job(expected_seconds=36_000, checkpoint_seconds=60, max_file_bytes=max_file_bytes)
    claimed_job = agent.claim_job()
    if uploaded_bytes:
        claimed_job.upload_checkpoint(7)
        manifest = claimed_job.job.checkpoints.get().manifest
        manifest["files"][0]["size"] = uploaded_bytes
        claimed_job.job.checkpoints.update(manifest=manifest)
    for minutes, stop in ((enough, ""), (too_few, "finish")):
        Node.objects.update(available="until", available_until=timezone.now() + timedelta(minutes=minutes))
        assert claimed_job.send_heartbeat().json()["stop"] == stop
    Node.objects.update(hardware={**HARDWARE.model_dump(mode="json"), "network_bytes_per_second": 1e8})
    assert claimed_job.send_heartbeat().json()["stop"] == ""
    Node.objects.update(hardware=HARDWARE.model_dump(mode="json"))
    claimed_job.finish("released")
    assert agent.request_action().action == "idle", "the window is too short for another job"


# --- hours of one run ------------------------------------------------------------------------------------------------


def test_run_over_node_limit_is_not_leased_there_again_soon(agent: Agent) -> None:
    create_job(
        expected_seconds=360_000, checkpoint_seconds=600, limits={**LIMITS.model_dump(), "wall_seconds": 720_000}
    )
    Node.objects.update(max_hours=4)
    claimed_job = agent.claim_job()
    assert claimed_job.send_heartbeat().json()["stop"] == ""
    Lease.objects.update(started_at=timezone.now() - timedelta(hours=3, minutes=59))
    reply = claimed_job.send_heartbeat().json()
    assert (reply["stop"], reply["reason"]) == (
        "finish",
        "Its owner lends 4 hours to one run; the job goes on elsewhere.",
    )
    claimed_job.upload_checkpoint(3)
    claimed_job.finish("released", reason=reply["reason"])
    assert agent.request_action().action == "idle"
    resumed_job = create_lent_agent("elsewhere").claim_job()
    resumed_job.finish("released")
    create_job(author="bob")
    assert finish_next_job(agent) == "bob", "the limit applies to that run only"
    Lease.objects.filter(node__name="loco").update(
        started_at=timezone.now() - timedelta(hours=30), ended_at=timezone.now() - timedelta(hours=26)
    )
    assert agent.request_action().action == "job", "the run may continue on this node the next day"


# --- queries, and matching in the database ---------------------------------------------------------------------------


jobs = st.lists(
    st.fixed_dictionaries(
        {
            "author": st.sampled_from(["ada", "bob"]),
            "needs_labels": st.sampled_from([[], ["1x24gb"], ["2x24gb"]]),
            "track": st.sampled_from(["small", "large"]),
            "from_core": st.booleans(),
            "priority": st.sampled_from([10, 40]),
            "checkpoint_seconds": st.sampled_from([0.0, 60.0]),
        }
    ),
    min_size=1,
    max_size=8,
)
nodes = st.lists(
    st.fixed_dictionaries(
        {
            "serves": st.sampled_from(["everyone", "core", "track"]),
            "serves_track": st.just("small"),
            "max_hours": st.sampled_from([None, 0.5, 8.0]),
            "gpus": st.integers(0, 2),
        }
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(pool=nodes, queue=jobs)
def test_claimed_job_is_the_best_match(db: None, pool: list[dict[str, Any]], queue: list[dict[str, Any]]) -> None:
    with transaction.atomic():
        for fields in queue:
            create_job(**fields)
        for number, fields in enumerate(pool):
            owner_settings = {name: value for name, value in fields.items() if name != "gpus"}
            hardware = dict(build_hardware(*[24] * fields["gpus"]))
            node, _ = create_node(f"node-{number}", hardware=hardware, **owner_settings)
            now = timezone.now()
            best = list(job_groups.load_queue(now).find_fitting(node_slots.build_node_slot(node, now)))
            granted = leases.claim_job(node)
            assert (granted is None) == (not best)
            if granted:
                claimed_group = job_groups.build_group_from_job(Lease.objects.get(pk=granted.lease).job)
                assert (claimed_group.needs, claimed_group.priority) == (best[0].needs, best[0].priority)
        transaction.set_rollback(True)
