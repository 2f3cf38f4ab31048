"""A small site, and an agent that works for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_process import Node
from tests.support.small_site import SmallSite
from trainer.sandbox import get_driver


@pytest.fixture
def site() -> Iterator[SmallSite]:
    made = SmallSite()
    yield made
    made.close()


@pytest.fixture
def node(site: SmallSite, tmp_path: Path) -> Iterator[Node]:
    made = Node(site, tmp_path / "node")
    yield made
    made.close()


@pytest.fixture
def confined() -> None:
    """For tests that need the sandbox."""
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
