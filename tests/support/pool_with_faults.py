"""A pool of real agents and a real site, with random faults: killed, frozen, stopped and disconnected agents."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import stdlib_release
from tests.support.fake_gpus import GIB, Card, build_driver_environment
from tests.support.live_site import LiveSite
from tests.support.waits import WAIT_SECONDS

STEPS, PACE = int(os.environ.get("CHAOS_STEPS", "60")), 0.03
"""Steps of a job, and seconds per step."""
EVERY = STEPS // 4
"""Steps between two checkpoints."""
LEASE_SECONDS = 3.0
CARDS = ((), ("NVIDIA GeForce RTX 3090",), ("NVIDIA GeForce RTX 3090",) * 2, ("NVIDIA H100 80GB HBM3",))
"""GPUs that the agents report, in turns. Credit depends on them, the jobs do not."""


class AgentProxy:
    """A proxy in front of the site with a port for each agent, whose connections can be cut."""

    def __init__(self, site_port: int, agents: int) -> None:
        self._site_port = site_port
        self._agents = agents
        self._open: dict[int, set[asyncio.StreamWriter]] = {number: set() for number in range(agents)}
        self._cut_until = dict.fromkeys(range(agents), 0.0)
        self._loop = asyncio.new_event_loop()
        self.ports: list[int] = []
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        self._thread.start()
        assert listening.wait(WAIT_SECONDS)

    def _run(self, listening: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._servers = [self._loop.run_until_complete(self._listen(number)) for number in range(self._agents)]
        self.ports = [server.sockets[0].getsockname()[1] for server in self._servers]
        listening.set()
        self._loop.run_forever()
        self._loop.close()

    async def _listen(self, number: int) -> asyncio.Server:
        return await asyncio.start_server(lambda *ends: self._join(number, *ends), "127.0.0.1", 0)

    async def _join(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < self._cut_until[number]:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._site_port)
        except OSError:
            writer.transport.abort()
            return
        self._open[number] |= {writer, far_writer}
        try:
            await asyncio.gather(forward(reader, far_writer), forward(far_reader, writer))
        finally:
            self._open[number] -= {writer, far_writer}

    def cut(self, number: int, seconds: float) -> None:
        """Abort the agent's connections, even in the middle of a transfer, and refuse new ones for some seconds."""
        self._cut_until[number] = time.monotonic() + seconds
        self._loop.call_soon_threadsafe(self._break, number)

    def _break(self, number: int) -> None:
        for writer in tuple(self._open[number]):
            writer.transport.abort()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(WAIT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for number in self._open:
            self._break(number)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=1)


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@dataclass
class Agent:
    """A real agent process that connects through its own port of the proxy."""

    number: int
    home: Path
    port: int
    token: str
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    frozen_until: float = 0.0

    def start(self) -> None:
        command = (sys.executable, "-m", "trainer.cli", "node", "--server", f"http://127.0.0.1:{self.port}")
        options = ("--home", str(self.home), "--name", f"agent-{self.number}", "--token", self.token)
        with self.home.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *options, "--sandbox", "bubblewrap"], env=self.environment, stdout=log, stderr=log
            )

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.is_running():
            self.process.send_signal(number)


@dataclass
class Pool:
    """The agents and the number of faults of each kind."""

    site: LiveSite
    agents: list[Agent]
    proxy: AgentProxy
    draw: random.Random
    fault_counts: Counter[str] = field(default_factory=Counter)

    def inject_faults(self, seconds: float, pause: float) -> None:
        """Inject a fault every `pause` seconds on average, and restart agents that have ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self.draw.uniform(0.2, 1.8) * pause)
            self.inject_fault(
                self.draw.choice(("kill", "freeze", "stop", "cut", "cut for long")), self.draw.choice(self.agents)
            )
            self.restart_agents()

    def inject_fault(self, kind: str, agent: Agent) -> None:
        self.fault_counts[kind] += 1
        if kind == "kill":
            agent.signal(signal.SIGKILL)
        elif kind == "stop":
            agent.signal(signal.SIGTERM)
        elif kind == "freeze":
            agent.signal(signal.SIGSTOP)
            agent.frozen_until = time.monotonic() + self.draw.uniform(0.5, 3) * LEASE_SECONDS
        else:
            longest = 3 * LEASE_SECONDS if kind == "cut for long" else 0.5
            self.proxy.cut(agent.number, self.draw.uniform(0.1, longest))

    def restart_agents(self, resume_all: bool = False) -> None:
        """Resume agents whose freeze has ended, or with `resume_all` every one, and start agents that have ended."""
        for agent in self.agents:
            if agent.frozen_until and (resume_all or time.monotonic() > agent.frozen_until):
                agent.signal(signal.SIGCONT)
                agent.frozen_until = 0.0
            if not agent.is_running():
                agent.start()

    def stop(self) -> None:
        for agent in self.agents:
            agent.signal(signal.SIGCONT)
            agent.signal(signal.SIGTERM)
        for agent in self.agents:
            if agent.process is not None:
                try:
                    agent.process.wait(20)
                except subprocess.TimeoutExpired:
                    agent.process.kill()
                    agent.process.wait()
        self.proxy.close()


def make_pool(site: LiveSite, agents: int, jobs: int, seed: int) -> Pool:
    """Queue the jobs and start the agents of a site whose web process runs."""
    amounts = {"jobs": jobs, "agents": agents, "steps": STEPS, "pace": PACE, "every": EVERY}
    tokens = site.call("pool.create_pool", release=encode_release(), **amounts)
    proxy = AgentProxy(site.port, agents)
    made = [
        Agent(number, site.folder / f"agent-{number}", port, token, build_environment(site, number))
        for number, (port, token) in enumerate(zip(proxy.ports, tokens, strict=True))
    ]
    for agent in made:
        agent.start()
    return Pool(site, made, proxy, random.Random(seed))


def build_environment(site: LiveSite, number: int) -> dict[str, str]:
    """Return the environment of an agent whose driver lists the cards of its turn."""
    names = CARDS[number % len(CARDS)]
    if not names:
        return site.environment
    cards = [Card(name, f"GPU-{number}-{card}", 24 * GIB) for card, name in enumerate(names)]
    return {**site.environment, **build_driver_environment(site.folder / f"cards-{number}", cards)}


def encode_release() -> str:
    import base64

    return base64.b64encode(stdlib_release.build_tar(stdlib_release.FILES)).decode()


def read_pool(site: LiveSite) -> dict[str, Any]:
    """Return every job and every lease of the site."""
    found: dict[str, Any] = site.call("pool.read_pool")
    return found


def read_steps(site: LiveSite, job: int) -> list[int]:
    """Return the steps of a job in the order in which the site received them."""
    path = site.folder / "home" / "steps" / str(job)
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []
