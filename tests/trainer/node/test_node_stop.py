"""Stopping and killing an agent, and the start of the next one."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.agent_process import Node, build_training_job, list_running_processes, wait_until_finished
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from tests.support.waits import wait_until
from trainer.node.job import GRACE_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]
SAVING = "saving a checkpoint before it stops"
"""What the agent logs at the first signal. A second one sent before that would be merged with it."""


def wait_for_metrics(site: NodeApiServer, lease: int) -> LeaseRecord:
    wait_until(lambda: lease in site.leases and site.leases[lease].rows)
    return site.leases[lease]


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
