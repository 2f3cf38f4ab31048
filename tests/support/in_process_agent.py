"""An agent inside the test's own process, so that a test can change its hardware."""

from __future__ import annotations

from pathlib import Path

from tests.support.agent_process import HASH
from tests.support.agent_thread import AgentThread
from tests.support.node_api_server import NodeApiServer
from trainer.node.agent import Agent
from trainer.node.client import SiteClient
from trainer.node.gpus import GpuReader
from trainer.sandbox import get_driver


class InProcessAgent(AgentThread):
    """An agent without a sandbox, whose cache has the dataset."""

    def __init__(
        self,
        site: NodeApiServer,
        home: Path,
        lanes: int | None = None,
        reader: GpuReader | None = None,
        disk_bytes: int | None = None,
    ) -> None:
        self.home = home
        manifest = home / "datasets" / HASH / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(f'{{"hash": "{HASH}"}}')
        client = SiteClient(site.address, "join-me")
        agent = Agent(client, home, get_driver("none"), ("none",), lanes, gpu_reader=reader, disk_bytes=disk_bytes)
        super().__init__(agent, lambda: agent.join("agent", ()))
