"""Jobs survive outages of the network and of the server; agents are stopped, killed and started again."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.agent_process import Node, build_training_job, list_running_processes, wait_until_finished
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from tests.support.waits import wait_until
from trainer import protocol
from trainer.node.job import GRACE_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]


def has_all_steps(held: LeaseRecord, steps: int) -> bool:
    return [row["step"] for row in held.rows] == list(range(1, steps + 1))


def wait_for_metrics(site: NodeApiServer, lease: int) -> LeaseRecord:
    """Wait until the job has sent metrics; return its lease."""
    wait_until(lambda: lease in site.leases and site.leases[lease].rows)
    return site.leases[lease]


@pytest.mark.slow
def test_job_during_an_outage_loses_nothing(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=60, pace=0.03))
    site.faults.append(lambda _: "down" if lease in site.leases and site.leases[lease].rows else "")
    node.start()
    wait_for_metrics(site, lease)
    wait_until(lambda: "The job continues" in node.read_output() and not list_running_processes(node.home))
    site.faults.clear()
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert held.finish.outcome == "done", held.finish.reason
    assert has_all_steps(held, 60)
    assert [checkpoint.step for checkpoint in held.checkpoints][-1] == 60


@pytest.mark.parametrize("kind", ["unanswered", "busy", "slow down", "garbled"])
def test_call_that_fails_once_is_retried(site: NodeApiServer, node: Node, kind: str) -> None:
    for path in ("/metrics", "/log", "/blobs", "/checkpoints", "/finish", "/heartbeat", "GET ", "PUT ", "/poll"):
        # A lease whose reply is lost expires on the server.
        if not (path == "/poll" and kind in ("unanswered", "garbled")) and not (kind == "garbled" and path == "GET "):
            site.inject_fault(kind, path, times=1)
    lease = site.queue_job(build_training_job(site, steps=30, pace=0.02))
    node.start()
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert held.finish.outcome == "done", held.finish.reason
    assert has_all_steps(held, 30)
    assert held.log == "training entry from step 0\n"
    assert [checkpoint.step for checkpoint in held.checkpoints] == [10, 20, 30]


def test_agent_waits_for_an_unreachable_server(site: NodeApiServer, node: Node) -> None:
    site.inject_fault("down", "/register", times=2)
    lease = site.queue_job(build_training_job(site))
    node.start()
    wait_until_finished(site, lease)
    assert "Retrying until it responds." in node.read_output()


def test_lost_lease_ends_the_job_only(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000))
    node.start()
    held = wait_for_metrics(site, lease)
    held.active = False
    wait_until(lambda: not list_running_processes(node.home))
    after = wait_until_finished(site, site.queue_job(build_training_job(site)))
    assert after.finish is not None
    assert after.finish.outcome == "done"
    assert held.finish is None
    assert "the lease is lost: The lease has expired." in node.read_output()
    assert not (node.home / "work" / str(lease)).exists()


def test_cancel_kills_the_job_at_once(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000))
    node.start()
    wait_for_metrics(site, lease).stop = protocol.HeartbeatReply(stop="cancel", reason="Cancelled by its author.")
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert (held.finish.outcome, held.finish.reason) == ("released", "Cancelled by its author.")
    assert held.checkpoints == []
    assert list_running_processes(node.home) == []


def test_finish_saves_a_checkpoint_and_releases_the_job(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000))
    node.start()
    wait_for_metrics(site, lease).stop = protocol.HeartbeatReply(stop="finish", reason="The night begins.")
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert (held.finish.outcome, held.finish.reason) == ("released", "The night begins.")
    assert len(held.checkpoints) == 1
    assert held.checkpoints[0].step == held.rows[-1]["step"]


def test_heartbeats_report_the_jobs_seconds(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000))
    node.start()
    held = wait_for_metrics(site, lease)

    def list_times() -> list[float]:
        return [beat.seconds for beat in held.heartbeats if beat.phase == "running"]

    wait_until(lambda: len(list_times()) >= 3 and list_times()[-1] > 1)
    held.stop = protocol.HeartbeatReply(stop="cancel")
    wait_until_finished(site, lease)
    assert list_times() == sorted(list_times())


SAVING = "saving a checkpoint before it stops"
"""What the agent logs at the first signal. A second one sent before that would be merged with it."""


def test_first_signal_saves_a_checkpoint_and_releases_the_job(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000))
    node.start()
    held = wait_for_metrics(site, lease)
    node.signal(signal.SIGINT)
    assert node.wait() == 0
    assert held.finish is not None
    assert (held.finish.outcome, held.finish.reason) == ("released", "The sponsor needs the machine.")
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
    began = time.monotonic()
    assert node.wait() == 0
    assert time.monotonic() - began < GRACE_SECONDS / 2
    assert held.finish is not None
    assert held.finish.outcome == "released"
    assert held.checkpoints == []
    assert list_running_processes(node.home) == []


def test_signal_while_idle_ends_the_agent_at_once(site: NodeApiServer, node: Node) -> None:
    node.start()
    wait_until(lambda: "Waiting for work." in node.read_output())
    began = time.monotonic()
    node.signal(signal.SIGTERM)
    assert node.wait() == 0
    assert time.monotonic() - began < GRACE_SECONDS / 2
    assert "Leaving." in node.read_output()


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
    node.start(token=None)
    assert wait_until_finished(site, second).finish is not None
    assert [poll.abandoned for poll in site.polls if poll.abandoned] == [(lease,)]
    assert not (node.home / "work" / str(lease)).exists()


@pytest.mark.slow
def test_unreported_lease_is_reported_by_the_next_agent(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=100_000))
    node.start()
    wait_for_metrics(site, lease)
    site.inject_fault("down", "/leases/")
    node.signal(signal.SIGTERM)
    wait_until(lambda: SAVING in node.read_output())
    node.signal(signal.SIGTERM)
    assert node.wait() == 0
    assert list((node.home / "work" / str(lease)).iterdir()) == []
    site.faults.clear()
    node.start()
    wait_until(lambda: any(poll.abandoned == (lease,) for poll in site.polls))


def test_second_agent_in_the_same_folder_is_refused(site: NodeApiServer, node: Node) -> None:
    node.start()
    wait_until(lambda: "Waiting for work." in node.read_output())
    second = Node(site, node.home).start()
    assert second.wait() == 2
    assert "Another agent is working in" in node.read_output()
