"""Fixtures: a server of the node API, and an agent process that polls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_process import Node
from tests.support.node_api_server import NodeApiServer
from trainer.sandbox import get_driver


@pytest.fixture
def site() -> Iterator[NodeApiServer]:
    made = NodeApiServer()
    yield made
    made.close()


@pytest.fixture
def node(site: NodeApiServer, tmp_path: Path) -> Iterator[Node]:
    made = Node(site, tmp_path / "node")
    yield made
    made.close()


@pytest.fixture
def requires_sandbox() -> None:
    """Skip the test where bubblewrap does not work."""
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
