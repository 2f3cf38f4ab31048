from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from tests.support.pool import Agent, make_node
from tests.support.recording_handler import CALLS


@pytest.fixture(autouse=True)
def calls(settings: Settings) -> Iterator[list[tuple[str, object]]]:
    """Jobs are of a kind that only notes what it is told."""
    settings.JOB_KINDS = {"train": "tests.support.recording_handler.Recorder"}
    CALLS.clear()
    yield CALLS
    CALLS.clear()


@pytest.fixture
def agent(db: None) -> Agent:
    """A node that has joined."""
    return Agent(make_node()[1])
