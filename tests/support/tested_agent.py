"""A real agent in a thread of the test's process, at the test's own site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler import node_tokens
from scheduler.models import Node
from tests.support.agent_thread import AgentThread
from trainer.node.agent import Agent, AgentStoppedError
from trainer.node.client import SiteClient
from trainer.sandbox import SandboxDriver, get_driver


class SiteAgent(AgentThread):
    """An agent that has joined the site as a node of its own."""

    def __init__(self, url: str, home: Path, sandbox: SandboxDriver | None = None, slots: int | None = None) -> None:
        home.mkdir(exist_ok=True)
        self.sandbox = sandbox or get_driver("none")
        client = SiteClient(url, node_tokens.create_join_token())
        agent = Agent(client, home, self.sandbox, (self.sandbox.name,), slots)
        self.identity = agent.join("loco", ())
        super().__init__(agent, lambda: self.identity)
        self.start()

    @property
    def node(self) -> Node:
        return Node.objects.get(pk=self.identity.node)


@contextmanager
def run_site_agent(
    url: str, home: Path, sandbox: SandboxDriver | None = None, slots: int | None = None
) -> Iterator[SiteAgent]:
    agent = SiteAgent(url, home, sandbox, slots)
    try:
        yield agent
    finally:
        agent.stop()
        if agent.ended is not None and not isinstance(agent.ended, AgentStoppedError):
            raise agent.ended
