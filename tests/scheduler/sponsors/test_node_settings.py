"""What owners wish is what happens: over the nodes' API, from the first question to the handing back."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from scheduler import job_groups, leases, matching, node_slots
from scheduler.models import Job, Lease, Node, Window
from tests.scheduler.test_claims_race import all_at_once, need_postgres
from tests.support.pool import HARDWARE, Agent, Work, make_job, make_node
from trainer import protocol

GIB = 2**30


def machine(*memory_gb: float, **facts: Any) -> protocol.Hardware:
    """A computer with GPUs of so much memory each."""
    gpus = tuple(protocol.Gpu(name="GPU", memory_bytes=int(size * 1.07e9)) for size in memory_gb)
    return HARDWARE.model_copy(update={"gpus": tuple(gpu.name for gpu in gpus), "gpu_details": gpus, **facts})


def lend(name: str, hardware: protocol.Hardware = HARDWARE, **wishes: Any) -> Agent:
    """A node that has joined, as its owner lends it."""
    return Agent(make_node(name, hardware=dict(hardware), **wishes)[1], hardware=hardware)


def what(agent: Agent) -> str:
    """Ask once; return the author of the job that is given, or why there is none, and hand the job back."""
    action = agent.ask()
    if action.lease is None:
        return action.reason
    work = Work(agent, action.lease)
    author = work.job.author
    work.finish("done")
    return author


def all_of(agent: Agent) -> set[str]:
    """Ask until there is nothing left for this node; return the authors of what it got."""
    got = set()
    while (answer := what(agent)).islower():
        got.add(answer)
    return got


# --- who gets what ---------------------------------------------------------------------------------------------------


def test_nodes_get_only_jobs_their_settings_allow(db: None) -> None:
    make_job(author="anybody")
    make_job(author="core", from_core=True)
    make_job(author="core-small", from_core=True, track="small")
    make_job(author="small", track="small", needs_labels=["1x24gb"])
    make_job(author="pair", needs_labels=["2x24gb"], track="large")
    make_job(author="rack", needs_labels=["rack-4"], from_core=True)
    make_job(author="huge", needs_labels=["8x80gb"], from_core=True)
    pair = machine(24, 24)
    for_core = lend("cellar", pair, serves="core", labels=["rack-4"], owner_labels=["rack-4"])
    for_small = lend("attic", machine(24), serves="track", serves_track="small")
    assert all_of(for_core) == {"core", "core-small", "rack"}
    assert all_of(for_small) == {"small"}
    assert all_of(lend("street", pair)) == {"anybody", "pair"}
    assert what(for_core) == "The waiting jobs need a node with 8 GPUs of 80 GB."
    assert Job.objects.get(state=Job.State.QUEUED).author == "huge"


def test_idle_reason_names_the_limiting_setting(db: None) -> None:
    make_job(author="ada")
    assert what(lend("cellar", serves="core")) == "The waiting jobs need a node whose owner lends it to everyone."


def test_matching_uses_lent_disk_and_memory(db: None) -> None:
    make_job(author="disk", needs_disk_bytes=20 * GIB)
    make_job(author="memory", needs_memory_bytes=6 * GIB)
    small = lend("small", disk_bytes=10 * GIB)
    assert all_of(small) == {"memory"}
    assert "of free disk" in what(small)
    halves = lend("halves", slots=2)
    assert halves.ask(lanes=2, lane=0).action == "job"
    assert Job.objects.get(state=Job.State.LEASED).author == "disk"


# --- when ------------------------------------------------------------------------------------------------------------


def test_node_outside_window_gets_next_opening(agent: Agent) -> None:
    make_job()
    node = Node.objects.get()
    Node.objects.update(available="windows", timezone="Asia/Kolkata")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    Window.objects.create(node=node, weekday=tomorrow.weekday(), start=time(9), end=time(17))
    Window.objects.create(node=node, weekday=(tomorrow.weekday() + 1) % 7, start=time(9), end=time(17))
    local = timezone.now().astimezone(node_slots.get_time_zone(node))
    if local.weekday() == tomorrow.weekday() and 8 <= local.hour < 17:
        pytest.skip("tomorrow has come in Kolkata")
    action = agent.ask()
    assert action.action == "idle"
    assert action.reason.startswith("Its owner does not lend this node just now. It is again from ")
    assert "09:00 (Asia/Kolkata)" in action.reason


def test_node_after_end_of_lending_gets_no_job(agent: Agent) -> None:
    make_job()
    Node.objects.update(available="until", available_until=timezone.now() - timedelta(minutes=1))
    assert agent.ask().reason == "Its owner does not lend this node just now."


def test_job_without_checkpoint_before_window_end_is_not_leased(agent: Agent) -> None:
    make_job(author="slow", expected_seconds=36_000, checkpoint_seconds=3600)
    make_job(author="quick", expected_seconds=36_000, checkpoint_seconds=300)
    Node.objects.update(available="until", available_until=timezone.now() + timedelta(minutes=30))
    assert all_of(agent) == {"quick"}
    assert what(agent) == "The waiting jobs need a node that is free for 63 minutes at a stretch."


def test_node_is_stopped_before_window_ends_and_job_resumes(agent: Agent) -> None:
    make_job(expected_seconds=36_000, checkpoint_seconds=60)
    Node.objects.update(available="until", available_until=timezone.now() + timedelta(hours=2))
    work = agent.work()
    assert work.heartbeat().json()["stop"] == ""
    Node.objects.update(available_until=timezone.now() + timedelta(seconds=85))
    reply = work.heartbeat().json()
    assert (reply["stop"], reply["reason"]) == (
        "finish",
        "Its owner wants the machine back soon; the job goes on elsewhere.",
    )
    work.checkpoint(7)
    assert work.finish("released", reason=reply["reason"]).status_code == 200
    assert agent.ask().action == "idle"
    onward = lend("elsewhere").work()
    assert isinstance(onward.spec.order, protocol.TrainOrder)
    assert onward.spec.order.resume
    assert onward.spec.order.resume.step == 7
    assert onward.job.failures == 0


def test_slow_upload_stops_job_earlier(agent: Agent) -> None:
    make_job(expected_seconds=36_000, checkpoint_seconds=60)
    work = agent.work()
    Node.objects.update(available="until", available_until=timezone.now() + timedelta(minutes=20))
    assert work.heartbeat().json()["stop"] == ""
    work.checkpoint(7)
    manifest = work.job.checkpoints.get().manifest
    manifest["files"][0]["size"] = 2 * 10**9
    work.job.checkpoints.update(manifest=manifest)
    assert work.heartbeat().json()["stop"] == "finish"
    Node.objects.update(hardware={**HARDWARE.model_dump(mode="json"), "network_bytes_per_second": 1e8})
    assert work.heartbeat().json()["stop"] == ""
    Node.objects.update(hardware=HARDWARE.model_dump(mode="json"))
    work.finish("released")
    assert agent.ask().action == "idle", "it would be asked for it at once"


# --- how long --------------------------------------------------------------------------------------------------------


def test_run_over_node_limit_is_not_leased_there_again_soon(agent: Agent) -> None:
    make_job(expected_seconds=360_000, checkpoint_seconds=600)
    Node.objects.update(max_hours=4)
    work = agent.work()
    assert work.heartbeat().json()["stop"] == ""
    Lease.objects.update(started_at=timezone.now() - timedelta(hours=3, minutes=59))
    reply = work.heartbeat().json()
    assert (reply["stop"], reply["reason"]) == (
        "finish",
        "Its owner lends 4 hours to one run; the job goes on elsewhere.",
    )
    work.checkpoint(3)
    work.finish("released", reason=reply["reason"])
    assert agent.ask().action == "idle"
    other = lend("elsewhere").work()
    other.finish("released")
    make_job(author="bob")
    assert what(agent) == "bob", "only that run has had its hours"
    Lease.objects.filter(node__name="loco").update(
        started_at=timezone.now() - timedelta(hours=30), ended_at=timezone.now() - timedelta(hours=26)
    )
    assert agent.ask().action == "job", "where nobody else was, it goes on here the next day"


# --- what it costs, and that it holds in the database --------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 60])
def test_poll_with_settings_takes_constant_queries(
    agent: Agent, django_assert_num_queries: DjangoAssertNumQueries, length: int
) -> None:
    for number in range(length):
        make_job(author=f"author-{number}", track=f"track-{number % 7}", needs_labels=["1x24gb"])
    node = Node.objects.get()
    Window.objects.bulk_create(Window(node=node, weekday=day, start=time(0), end=time(0)) for day in range(7))
    Node.objects.update(available="windows", max_hours=2)
    agent.ask()
    with django_assert_num_queries(5):
        assert agent.ask().action == "idle"


def test_polls_of_a_process_share_the_queue_cache(
    agent: Agent, settings: Any, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    settings.QUEUE_READ_SECONDS = 60
    job_groups.QUEUE_CACHE = job_groups.QueueCache()
    make_job(needs_labels=["h100"])
    agent.ask()
    with django_assert_num_queries(1):
        assert agent.ask().reason == "The waiting jobs need a node labeled h100."
    make_job(author="bob")
    assert agent.ask().action == "idle"
    job_groups.QUEUE_CACHE = job_groups.QueueCache()
    assert agent.ask().action == "job"
    assert lend("next").ask().action == "idle", "what was seen is gone: passed over"


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


def build(pool: list[dict[str, Any]], queue: list[dict[str, Any]]) -> list[Node]:
    for fields in queue:
        make_job(**fields)
    made = []
    for number, fields in enumerate(pool):
        wishes = {name: value for name, value in fields.items() if name != "gpus"}
        hardware = dict(machine(*[24] * fields["gpus"]))
        made.append(make_node(f"node-{number}", hardware=hardware, **wishes)[0])
    return made


def check_all_is_as_wished() -> None:
    """No node holds what it may not, no lane two jobs, and nobody goes without where there is something for him."""
    now = timezone.now()
    for lease in Lease.objects.filter(state=Lease.State.ACTIVE).select_related("job", "node"):
        assert (
            matching.find_obstacle(
                job_groups.build_group_from_job(lease.job), node_slots.build_node_slot(lease.node, now)
            )
            is None
        )
    idle = Node.objects.exclude(leases__state=Lease.State.ACTIVE)
    for node in idle:
        assert leases.claim_job(node) is None or connection.vendor == "postgresql", (
            "skipped while another was taking it"
        )
    for node in Node.objects.exclude(leases__state=Lease.State.ACTIVE):
        for line in job_groups.load_job_groups(now):
            assert matching.find_obstacle(line, node_slots.build_node_slot(node, now)) is not None


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(pool=nodes, queue=jobs)
def test_claimed_job_is_the_best_match(db: None, pool: list[dict[str, Any]], queue: list[dict[str, Any]]) -> None:
    with transaction.atomic():
        for node in build(pool, queue):
            now = timezone.now()
            best = list(job_groups.load_queue(now).find_fitting(node_slots.build_node_slot(node, now)))
            granted = leases.claim_job(node)
            assert (granted is None) == (not best)
            if granted:
                got = job_groups.build_group_from_job(Lease.objects.get(pk=granted.lease).job)
                assert got.needs == best[0].needs
                assert got.priority == best[0].priority
        check_all_is_as_wished()
        transaction.set_rollback(True)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(pool=nodes, queue=jobs)
def test_concurrent_claims_on_postgresql_match(pool: list[dict[str, Any]], queue: list[dict[str, Any]]) -> None:
    need_postgres()
    Lease.objects.all().delete()
    Job.objects.all().delete()
    Node.objects.all().delete()
    everyone = build(pool, queue)
    all_at_once([lambda node=node: leases.claim_job(node) for node in everyone])  # type: ignore[misc]
    held = list(Lease.objects.filter(state=Lease.State.ACTIVE).values_list("job", flat=True))
    assert len(held) == len(set(held))
    check_all_is_as_wished()
