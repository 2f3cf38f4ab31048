"""A real agent proves itself at a real site, with the site's release, its sandbox and torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.models import Job, Node
from tests.support.tested_agent import run_site_agent
from tests.support.waits import wait_until
from trainer.sandbox import get_driver

pytestmark = [pytest.mark.processes, pytest.mark.self_test, pytest.mark.slow]


def require_bubblewrap() -> None:
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)


def test_agent_that_works_passes_its_self_test_in_its_sandbox(site_url: str, tmp_path: Path) -> None:
    require_bubblewrap()
    with run_site_agent(site_url, tmp_path / "node", get_driver("bubblewrap")) as agent:
        wait_until(lambda: agent.node.state in (Node.State.ONLINE, Node.State.FAILING))
    node = agent.node
    assert (node.state, node.reason) == (Node.State.ONLINE, "")
    test = node.self_tests["0"]
    assert test["passed"]
    assert test["result"]["sandbox"] == "bubblewrap"
    assert 0 < test["result"]["bits_per_byte"] < 10
    assert Job.objects.get().kind == "self_test"
