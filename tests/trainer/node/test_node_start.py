"""The agent is light: it starts at once and needs neither torch nor Django."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agent_process import Node, build_training_job, terminate
from tests.support.node_api_server import NodeApiServer
from tests.support.waits import wait_until
from trainer.sandbox import get_driver

pytestmark = pytest.mark.processes

EVERYTHING = """
import sys
import trainer.node.agent, trainer.node.slot_loops, trainer.cli.node, trainer.node.identity
heavy = {"torch", "django", "lightning_fabric", "numpy", "transformers", "pynvml"} & set(sys.modules)
assert not heavy, heavy
"""


def test_agent_imports_neither_torch_nor_django() -> None:
    subprocess.run([sys.executable, "-c", EVERYTHING], check=True)


@pytest.mark.slow
def test_agent_start_costs_little_more_than_its_libraries(
    site: NodeApiServer, tmp_path: Path, requires_sandbox: None
) -> None:
    """In processor time and relative to the imports of the libraries in the same run; the best of a few."""
    node = Node(site, tmp_path / "node")
    site.queue_job(build_training_job(site))
    node.start("--once").wait()
    agent, libraries = [], []
    for _ in range(5):
        polls = len(site.polls)
        node.start()
        wait_until(lambda polls=polls: len(site.polls) > polls)  # type: ignore[misc]
        assert node.process is not None
        fields = Path(f"/proc/{node.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        agent.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        terminate(node)
        command = [sys.executable, "-c", "import time, httpx, pydantic, cryptography, rich; print(time.process_time())"]
        libraries.append(float(subprocess.check_output(command)))
    assert min(agent) < 4 * min(libraries)  # importing torch would cost ten times as much


def test_agent_without_a_sandbox_warns(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site))
    assert node.start("--once", sandbox="none").wait() == 0
    assert "WITHOUT A SANDBOX" in node.read_output()
    assert site.registered[0].hardware.sandboxes == ("none",)
    finish = site.leases[lease].finish
    assert finish is not None
    assert finish.outcome == "done", finish.reason + site.leases[lease].log


def test_agent_with_a_broken_sandbox_prints_one_line(site: NodeApiServer, node: Node) -> None:
    if get_driver("docker").find_problem() is None:
        pytest.skip("docker works here")
    assert node.start(sandbox="docker").wait() == 2
    assert "Nothing runs without a sandbox unless you give --sandbox none." in node.read_output()


@pytest.mark.slow
def test_agent_with_a_new_token_joins_again(site: NodeApiServer, node: Node, requires_sandbox: None) -> None:
    site.join_tokens["again"] = 7
    for token, joined in (("join-me", 1), ("join-me", 1), ("again", 2), ("again", 2), (None, 2)):
        polls = len(site.polls)
        node.start(token=token)
        wait_until(lambda polls=polls: len(site.polls) > polls)  # type: ignore[misc]
        assert terminate(node) == 0
        assert len(site.registered) == joined, token
