"""A real agent in a thread of the test's process, at the test's own site."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler import node_tokens
from scheduler.models import Node
from tests.support.waits import WAIT_SECONDS
from trainer.node.agent import Agent, AgentStoppedError
from trainer.node.client import SiteClient
from trainer.node.slot_loops import run_slots
from trainer.sandbox import SandboxDriver, get_driver


class SiteAgent:
    """An agent that has joined the site as a node of its own."""

    def __init__(self, url: str, home: Path, sandbox: SandboxDriver | None = None, slots: int | None = None) -> None:
        home.mkdir(exist_ok=True)
        self.sandbox = sandbox or get_driver("none")
        client = SiteClient(url, node_tokens.create_join_token())
        self.agent = Agent(client, home, self.sandbox, (self.sandbox.name,), slots)
        self.identity = self.agent.join("loco", ())
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def node(self) -> Node:
        return Node.objects.get(pk=self.identity.node)

    def _run(self) -> None:
        try:
            run_slots(self.agent, self.identity, once=False)
        except AgentStoppedError:
            pass
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """Stop the agent as Ctrl-C does, and wait until it has stopped."""
        self.agent.sponsor.request_stop()
        self._thread.join(WAIT_SECONDS)
        for thread in threading.enumerate():
            if thread.name.startswith("Slot"):
                thread.join(WAIT_SECONDS)  # its poll may still be open
        self.agent.client.close()
        if self.error is not None:
            raise self.error


@contextmanager
def run_site_agent(
    url: str, home: Path, sandbox: SandboxDriver | None = None, slots: int | None = None
) -> Iterator[SiteAgent]:
    agent = SiteAgent(url, home, sandbox, slots)
    try:
        yield agent
    finally:
        agent.stop()
