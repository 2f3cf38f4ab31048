"""Jobs survive outages of the network and of the server; agents are stopped, killed and started again."""

from __future__ import annotations

import signal

import pytest

from tests.support.agent_process import (
    Node,
    build_training_job,
    list_running_processes,
    run_job,
    wait_until,
    wait_until_finished,
)
from tests.support.full_disk import full_disk
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from trainer import protocol

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]


def wait_for_metrics(site: NodeApiServer, lease: int) -> LeaseRecord:
    """Wait until the job has sent metrics; return its lease."""
    wait_until(lambda: lease in site.leases and site.leases[lease].rows)
    return site.leases[lease]


def test_job_during_an_outage_loses_nothing(
    site: NodeApiServer, agent: InProcessAgent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trainer.node")
    site.inject_fault("down", "/register", times=1)
    lease = site.queue_job(build_training_job(site, steps=30, pace=0.03))
    site.faults.append(lambda _: "down" if lease in site.leases and site.leases[lease].rows else "")
    agent.start()
    held = wait_for_metrics(site, lease)
    assert "Retrying until it responds." in caplog.text
    wait_until(lambda: "The job continues" in caplog.text and not list_running_processes(agent.home))
    site.faults.clear()
    wait_until_finished(site, lease)
    assert held.end.outcome == "done", held.end.reason
    assert [row["step"] for row in held.rows] == list(range(1, 31))
    assert [checkpoint.step for checkpoint in held.checkpoints][-1] == 30


@pytest.mark.parametrize(
    "kind", ["unanswered", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("busy", "slow down", "garbled"))]
)
def test_call_that_fails_once_is_retried(site: NodeApiServer, agent: InProcessAgent, kind: str) -> None:
    for path in ("/metrics", "/log", "/blobs", "/checkpoints", "/finish", "/heartbeat", "GET ", "PUT ", "/poll"):
        # A lease whose reply is lost expires on the server.
        if not (path == "/poll" and kind in ("unanswered", "garbled")) and not (kind == "garbled" and path == "GET "):
            site.inject_fault(kind, path, times=1)
    agent.start()
    held = run_job(site, build_training_job(site, steps=30, pace=0.02))
    assert held.end.outcome == "done", held.end.reason
    assert [row["step"] for row in held.rows] == list(range(1, 31))
    assert held.log == "training entry from step 0\n"
    assert [checkpoint.step for checkpoint in held.checkpoints] == [10, 20, 30]


def test_lost_lease_ends_the_job_only(
    site: NodeApiServer, agent: InProcessAgent, caplog: pytest.LogCaptureFixture
) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000))
    agent.start()
    held = wait_for_metrics(site, lease)
    held.active = False
    wait_until(lambda: not list_running_processes(agent.home))
    assert run_job(site, build_training_job(site)).end.outcome == "done"
    assert held.finish is None
    assert "the lease is lost: The lease has expired." in caplog.text
    assert not (agent.home / "work" / str(lease)).exists()


def test_cancel_kills_the_job_at_once(site: NodeApiServer, agent: InProcessAgent) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000))
    agent.start()
    held = wait_for_metrics(site, lease)

    def list_times() -> list[float]:
        return [beat.seconds for beat in held.heartbeats if beat.phase == "running"]

    wait_until(lambda: len(list_times()) >= 3 and list_times()[-1] > 1)
    held.stop = protocol.HeartbeatReply(stop="cancel", reason="Cancelled by its author.")
    wait_until_finished(site, lease)
    assert (held.end.outcome, held.end.reason) == ("released", "Cancelled by its author.")
    assert held.checkpoints == []
    assert list_running_processes(agent.home) == []
    assert list_times() == sorted(list_times())


def test_finish_saves_a_checkpoint_and_releases_the_job(site: NodeApiServer, agent: InProcessAgent) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000))
    agent.start()
    wait_for_metrics(site, lease).stop = protocol.HeartbeatReply(stop="finish", reason="The night begins.")
    held = wait_until_finished(site, lease)
    assert (held.end.outcome, held.end.reason) == ("released", "The night begins.")
    assert [checkpoint.step for checkpoint in held.checkpoints] == [held.rows[-1]["step"]]


SAVING = "saving a checkpoint before it stops"
"""What the agent logs at the first signal. A second one sent before that would be merged with it."""


def test_first_signal_saves_a_checkpoint_and_releases_the_job(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000))
    node.start()
    held = wait_for_metrics(site, lease)
    node.signal(signal.SIGINT)
    assert node.wait() == 0
    assert (held.end.outcome, held.end.reason) == ("released", "The sponsor needs the machine.")
    assert [checkpoint.step for checkpoint in held.checkpoints] == [held.rows[-1]["step"]]
    assert list_running_processes(node.home) == []
    assert list((node.home / "work").iterdir()) == []


def test_second_signal_kills_and_releases_at_once(site: NodeApiServer, node: Node) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000, misbehave=stubborn))
    node.start()
    held = wait_for_metrics(site, lease)
    node.signal(signal.SIGTERM)
    wait_until(lambda: SAVING in node.read_output())
    assert node.process is not None
    assert node.process.poll() is None
    node.signal(signal.SIGTERM)
    assert node.wait() == 0
    assert held.end.outcome == "released"
    assert held.checkpoints == []
    assert list_running_processes(node.home) == []


def test_killed_agent_leaves_nothing_and_the_next_reports_its_leases(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000))
    node.start()
    wait_for_metrics(site, lease)
    assert list_running_processes(node.home) != []
    node.signal(signal.SIGKILL)
    node.wait()
    wait_until(lambda: not list_running_processes(node.home))
    assert (node.home / "work" / str(lease)).is_dir()

    second = site.queue_job(build_training_job(site))
    assert node.run("--once", token=None) == 0
    assert site.leases[second].finish is not None
    assert [poll.abandoned for poll in site.polls if poll.abandoned] == [(lease,)]
    assert not (node.home / "work" / str(lease)).exists()


@pytest.mark.slow
def test_disk_full_during_the_job_is_the_machines_fault(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000, pace=0.01))
    node.start()
    wait_until(lambda: lease in site.leases and site.leases[lease].checkpoints)
    assert node.process is not None

    with full_disk(node.process.pid):
        held = wait_until_finished(site, lease)

    assert (held.end.outcome, held.end.cause) == ("failed", "infrastructure")
    assert [row["step"] for row in held.rows] == list(range(1, len(held.rows) + 1))
    assert run_job(site, build_training_job(site)).end.outcome == "done"
    assert list_running_processes(node.home) == []
