"""A full disk of the node fails the job as infrastructure, and the agent continues when there is space."""

from __future__ import annotations

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
from tests.support.node_api_server import NodeApiServer

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox"), pytest.mark.slow]


def test_disk_full_before_the_job_is_the_machines_fault(site: NodeApiServer, node: Node) -> None:
    node.start()
    assert run_job(site, build_training_job(site)).end.outcome == "done"
    assert node.process is not None

    with full_disk(node.process.pid):
        finish = run_job(site, build_training_job(site)).end
    assert (finish.outcome, finish.cause) == ("failed", "infrastructure")
    assert "File too large" in finish.reason
    assert run_job(site, build_training_job(site)).end.outcome == "done"


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
