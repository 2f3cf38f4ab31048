from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from tests.support.pool import Agent, ClaimedJob, create_job, create_node
from tests.support.recording_handler import CALLS


@pytest.fixture(autouse=True)
def calls(settings: Settings) -> Iterator[list[tuple[str, object]]]:
    """Use a job kind that only records the calls of its handler."""
    settings.JOB_KINDS = {**settings.JOB_KINDS, "train": "tests.support.recording_handler.Recorder"}
    CALLS.clear()
    yield CALLS
    CALLS.clear()


@pytest.fixture
def agent(db: None) -> Agent:
    """The agent of a joined node."""
    return Agent(create_node()[1])


@pytest.fixture
def other_agent(db: None) -> Agent:
    return Agent(create_node("other")[1])


@pytest.fixture
def claimed_job(agent: Agent) -> ClaimedJob:
    create_job()
    return agent.claim_job()
