"""The agent starts, or says in one line why not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.support.agent_process import Node, build_training_job
from tests.support.node_api_server import NodeApiServer
from trainer.node.agent import Agent
from trainer.node.client import SiteClient
from trainer.node.job_handlers import describe_missing_extras
from trainer.sandbox import get_driver

pytestmark = pytest.mark.processes


def test_agent_without_a_sandbox_warns(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site))
    assert node.run("--once") == 0
    assert "WITHOUT A SANDBOX" in node.read_output()
    assert site.registered[0].hardware.sandboxes == ("none",)
    finish = site.leases[lease].end
    assert finish.outcome == "done", finish.reason + site.leases[lease].log


def test_agent_with_a_broken_sandbox_prints_one_line(site: NodeApiServer, node: Node) -> None:
    if get_driver("docker").find_problem() is None:
        pytest.skip("docker works here")
    assert node.run(sandbox="docker") == 2
    assert "Nothing runs without a sandbox unless you give --sandbox none." in node.read_output()


def test_second_agent_in_the_same_folder_is_refused(node: Node) -> None:
    node.home.mkdir()
    with FileLock(node.home / "agent.lock"):
        assert node.run() == 2
    assert "Another agent is working in" in node.read_output()


def build_agent(home: Path) -> Agent:
    return Agent(SiteClient("http://127.0.0.1:9", ""), home, get_driver("none"), ())


def test_agent_without_extras_takes_no_jobs_of_theirs_and_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    if not (find_spec("papermill") and find_spec("hivemind")):
        pytest.skip("the extras are not installed")
    assert {"train", "notebook", "seat"} <= set(build_agent(tmp_path).kinds)
    assert describe_missing_extras() == ""

    def find(name: str, *others: Any) -> Any:
        return None if name in ("papermill", "hivemind") else find_spec(name, *others)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    kinds = build_agent(tmp_path).kinds
    assert not {"notebook", "swarm", "seat"} & set(kinds)
    assert {"train", "score"} <= set(kinds)
    assert describe_missing_extras() == "takes no notebook and swarm jobs: pip install 'dailytrain[notebook,swarm]'"
