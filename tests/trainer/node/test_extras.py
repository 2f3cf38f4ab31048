"""Nodes without optional packages take no jobs that need them, and say so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from trainer.node.agent import Agent
from trainer.node.client import SiteClient
from trainer.node.job_handlers import describe_missing_extras
from trainer.sandbox import get_driver


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extras `notebook` and `swarm`."""
    find_spec = importlib.util.find_spec

    def find(name: str, *others: Any) -> Any:
        return None if name in ("papermill", "hivemind") else find_spec(name, *others)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def build_agent(home: Path) -> Agent:
    return Agent(SiteClient("http://127.0.0.1:9", ""), home, get_driver("none"), ())


@pytest.mark.usefixtures("without_extras")
def test_node_without_extras_takes_no_notebooks_and_names_the_extras(tmp_path: Path) -> None:
    kinds = build_agent(tmp_path).kinds
    assert not {"notebook", "swarm", "seat"} & set(kinds)
    assert {"train", "score"} <= set(kinds)
    expected = "takes no notebook and swarm jobs: pip install 'dailytrain[notebook,swarm]'"
    assert describe_missing_extras() == expected


def test_node_with_extras_takes_notebooks_and_seats(tmp_path: Path) -> None:
    pytest.importorskip("papermill")
    pytest.importorskip("hivemind")
    assert {"notebook", "seat"} <= set(build_agent(tmp_path).kinds)
    assert describe_missing_extras() == ""
