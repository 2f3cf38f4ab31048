"""Fixtures: a server of the node API, and agents that poll it: in this process, in a new one, or in a shared one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_process import Node
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer
from trainer.sandbox import get_driver


@pytest.fixture
def site() -> Iterator[NodeApiServer]:
    made = NodeApiServer()
    yield made
    made.close()


@pytest.fixture
def node(site: NodeApiServer, tmp_path: Path) -> Iterator[Node]:
    """The agent as its own process. A test starts it."""
    made = Node(site, tmp_path / "node")
    yield made
    made.close()


@pytest.fixture
def agent(site: NodeApiServer, tmp_path: Path) -> Iterator[InProcessAgent]:
    """The agent in a thread, without a sandbox. A test starts it."""
    made = InProcessAgent(site, tmp_path / "agent")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def sandbox_problem() -> str | None:
    return get_driver("bubblewrap").find_problem()


@pytest.fixture
def requires_sandbox(sandbox_problem: str | None) -> None:
    """Skip the test where bubblewrap does not work."""
    if sandbox_problem is not None:
        pytest.skip(sandbox_problem)


@pytest.fixture(scope="session")
def running_node(sandbox_problem: str | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """An agent process and its site for all tests that only give it jobs."""
    if sandbox_problem is not None:
        pytest.skip(sandbox_problem)
    site = NodeApiServer()
    made = Node(site, tmp_path_factory.mktemp("running") / "node").start()
    yield made
    made.close()
    site.close()
