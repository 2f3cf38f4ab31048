"""An agent inside the test's own process, so that a test can change its hardware."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.agent_process import HASH
from tests.support.node_api_server import NodeApiServer
from tests.support.waits import WAIT_SECONDS
from trainer.node.agent import Agent, AgentStoppedError
from trainer.node.client import SiteClient
from trainer.node.gpus import GpuReader
from trainer.node.slot_loops import run_slots
from trainer.sandbox import get_driver


class InProcessAgent:
    """An agent without a sandbox, whose cache has the dataset."""

    def __init__(
        self, site: NodeApiServer, home: Path, lanes: int | None = None, reader: GpuReader | None = None
    ) -> None:
        manifest = home / "datasets" / HASH / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(f'{{"hash": "{HASH}"}}')
        client = SiteClient(site.address, "join-me")
        self.agent = Agent(client, home, get_driver("none"), ("none",), lanes, gpu_reader=reader)
        self.ended: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> InProcessAgent:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            identity = self.agent.join("agent", ())
            run_slots(self.agent, identity, once=False)
        except (AgentStoppedError, Exception) as error:
            self.ended = error

    def stop(self) -> None:
        """Stop the agent as Ctrl-C does, and wait until it has stopped."""
        self.agent.sponsor.request_stop()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        for thread in threading.enumerate():
            if thread.name.startswith("Slot"):
                thread.join(10)  # its poll may still be open
        self.agent.client.close()
