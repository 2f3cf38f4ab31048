"""A node's speed is measured before and after a training, by the site's own code."""

from __future__ import annotations

import pytest

from tests.support.agent_process import Node, build_training_job, wait_until_finished
from tests.support.node_api_server import NodeApiServer
from trainer import protocol

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]
READING = {"tokens_per_second": 256.0, "spread": 0.01, "steps": 5, "loss": 8.5}
LIE = """
write = type(out).write_text
def lie(path, text):
    if path.name == "result.json":
        text = json.dumps({**json.loads(text), "probes": {"before": "as fast as you like"}})
    return write(path, text)
type(out).write_text = lie
"""


def test_probe_readings_ignore_the_trainings_own_claim(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, probe=protocol.ProbeSpec(seconds=1), misbehave=LIE))
    unasked = site.queue_job(build_training_job(site, misbehave=LIE))
    node.start()
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert held.finish.outcome == "done", held.finish.reason + held.log
    assert held.finish.result["probes"] == {"version": 1, "before": READING, "after": READING}
    assert held.log == "probing\ntraining entry from step 0\nprobing\n"
    finish = wait_until_finished(site, unasked).finish
    assert finish is not None
    assert finish.result["probes"] is None


def test_failing_probe_does_not_stop_the_training(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, probe=protocol.ProbeSpec(seconds=1, width=128)))
    node.start()
    finish = wait_until_finished(site, lease).finish
    assert finish is not None
    assert finish.outcome == "done"
    assert finish.result["probes"] == {"version": 1, "before": None, "after": None}
