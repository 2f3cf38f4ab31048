"""A whole swarm on this machine: its coordinator and its workers, each a process of its own, over real sockets.

Processes are forked off one that has imported everything already (`forkserver`), so that a newcomer is there in a
moment. Whoever dies by a fault is replaced, the coordinator by one that goes on from the journal. All end with this
process.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import multiprocessing
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainer.swarm.chaos import Fault
from trainer.swarm.config import SwarmConfig
from trainer.swarm.journal import History, Line, read
from trainer.swarm.transport import set_environment

PRELOADED = ["hivemind.p2p", "trainer.swarm.coordinator", "trainer.swarm.worker"]
PDEATHSIG = 1
"""Of `prctl`: the signal that a process gets when its parent dies."""


class Stuck(Exception):
    """The swarm did not get on in time."""


@dataclass
class Started:
    """A worker's process."""

    process: BaseProcess
    name: str
    wish: int | None
    folder: Path


@dataclass
class World:
    """A swarm of a run. `with World(...) as world: world.run(seconds)`."""

    config: SwarmConfig
    dataset: Path
    wishes: Sequence[int | None]
    """One for each worker at the start: the stage it asks for."""
    faults: dict[str, Sequence[Fault]] = field(default_factory=dict)
    """Of workers, by name: worker-0, worker-1, ... in the order of `wishes`."""
    coordinator_faults: Sequence[Sequence[Fault]] = ()
    """Of the coordinator's first start, its second, and so on."""
    patience: float = 3.0
    rebalance_every: float = 300.0
    waits: dict[int, int] = field(default_factory=dict)
    """Steps before which the coordinator waits until exactly so many belong."""
    replace: bool = True
    """Whether a worker that was killed is followed by a newcomer."""
    out: Path | None = None
    """Where journal, checkpoints and logs are kept; None: nowhere."""
    threads: int = 1
    links: Callable[[int], int] | None = None
    """Given the port of a process, returns the one that others should dial for it."""
    undialled: Collection[str] = ()
    """Workers without a port: reached over connections of their own, or through the coordinator."""
    modules: dict[str, str] = field(default_factory=dict)
    """What a worker's process runs instead of `trainer.swarm.worker`."""
    kills: int = 0
    workers: list[Started] = field(default_factory=list)
    leader: BaseProcess | None = None

    def __enter__(self) -> Self:
        self.base = Path(tempfile.mkdtemp(prefix="swarm-"))
        self.folder = self.out or self.base / "run"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sockets = self.base / "s"
        self.sockets.mkdir()
        set_environment()  # the processes are forked off one that imports hivemind at once
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.numbers, self.starts, self.port = itertools.count(), itertools.count(), free_port()
        (self.base / "config.json").write_text(self.config.model_dump_json())
        self.lead()
        for wish in self.wishes:
            self.add(wish)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.processes():
            process.kill()
        for process in self.processes():
            process.join()
        shutil.rmtree(self.base, ignore_errors=True)

    def processes(self) -> list[BaseProcess]:
        return [worker.process for worker in self.workers] + ([self.leader] if self.leader else [])

    # --- starting ---

    def start(self, name: str, module: str, flags: Sequence[Any], faults: Sequence[Fault]) -> BaseProcess:
        given = ["--faults", json.dumps([fault.model_dump() for fault in faults])] if faults else []
        argv = [*map(str, flags), *given]
        log = self.folder / f"{name}.log"
        process = self.context.Process(
            target=become, args=(os.getpid(), module, argv, log, self.sockets, self.threads), name=name, daemon=True
        )
        process.start()
        return process

    def lead(self) -> None:
        """Start the coordinator, for the first time or again."""
        number = next(self.starts)
        faults = self.coordinator_faults[number] if number < len(self.coordinator_faults) else ()
        flags = ["--folder", self.folder, "--dataset", self.dataset, "--config", self.base / "config.json"]
        flags += ["--listen", f"127.0.0.1:{self.port}", "--peers", len(self.wishes), "--patience", self.patience]
        flags += ["--rebalance-every", self.rebalance_every]
        flags += [f"--wait-for={step}:{members}" for step, members in self.waits.items()]
        flags += ["--serve-as-relay"] if self.undialled else []
        flags += self.announced(self.port)
        self.leader = self.start(f"coordinator-{number}", "trainer.swarm.coordinator", flags, faults)

    def add(self, wish: int | None = None) -> Started:
        """Start one more worker."""
        name = f"worker-{next(self.numbers)}"
        folder = self.base / name
        flags = ["--coordinator", self.address(), "--folder", folder, "--label", name]
        flags += ["--wish", wish] if wish is not None else []
        flags += self.reached(name)
        module = self.modules.get(name, "trainer.swarm.worker")
        process = self.start(name, module, flags, self.faults.get(name, ()))
        self.workers.append(Started(process, name, wish, folder))
        return self.workers[-1]

    def belonging(self) -> dict[str, int]:
        """Return the members' names, worker-0 and so on, and their stages."""
        return {line["label"]: line["stage"] for line in History.of(self.journal()).members.values()}

    def process(self, name: str) -> BaseProcess:
        return next(worker.process for worker in self.workers if worker.name == name)

    def reached(self, name: str) -> list[str]:
        """Return a worker's flags that say how it can be reached."""
        if name in self.undialled:
            return ["--no-listen", "--relay", self.address()]
        port = free_port()
        return ["--listen", f"127.0.0.1:{port}", *self.announced(port)] if self.links else []

    def announced(self, port: int) -> list[str]:
        return ["--announce", f"/ip4/127.0.0.1/tcp/{self.links(port)}"] if self.links else []

    def address(self, seconds: float = 60) -> str:
        """Return where the coordinator can be reached, as soon as that is known."""
        file = self.folder / "address.json"
        deadline = time.monotonic() + seconds
        while not file.exists():
            self.look_after()
            if time.monotonic() > deadline:
                raise Stuck(f"the coordinator did not start: {self.said('coordinator-0')}")
            time.sleep(0.02)
        return str(json.loads(file.read_text())["addresses"][0])

    # --- running ---

    def run(self, seconds: float, meanwhile: Callable[[World], None] = lambda world: None) -> list[Line]:
        """Wait for the end, replacing who is killed; return the journal. `meanwhile` is called again and again."""
        deadline = time.monotonic() + seconds
        while not self.finished():
            self.look_after()
            meanwhile(self)
            if time.monotonic() > deadline:
                raise Stuck(f"not finished after {seconds:.0f} s, at step {self.step()}: {self.said('coordinator-0')}")
            time.sleep(0.02)
        self.go_home()
        return self.journal()

    def go_home(self) -> None:
        """Wait for the workers, who have been told that it is over; who came too late for that is told now."""
        deadline = time.monotonic() + 2
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(10)

    def finished(self) -> bool:
        return self.leader is not None and self.leader.exitcode == 0

    def look_after(self) -> None:
        """Count and replace who was killed. Raise Stuck for one that ended in any other way."""
        if self.leader is not None and self.leader.exitcode not in (None, 0):
            self.counted(self.leader)
            self.lead()
        for worker in [w for w in self.workers if w.process.exitcode not in (None, 0)]:
            self.counted(worker.process)
            self.workers.remove(worker)
            if self.replace:
                self.add(worker.wish)

    def counted(self, process: BaseProcess) -> None:
        if process.exitcode != -signal.SIGKILL:
            raise Stuck(f"{process.name} ended with {process.exitcode}: {self.said(process.name)}")
        self.kills += 1

    def journal(self) -> list[Line]:
        return read(self.folder)

    def step(self) -> int:
        """Return how many steps have been made."""
        return sum(line["kind"] == "commit" for line in self.journal())

    def said(self, name: str) -> str:
        """Return the last lines of a process."""
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace")[-1500:] if file.exists() else "nothing"

    def left_behind(self) -> list[str]:
        """Return the command lines of processes that should be gone: workers, and daemons with sockets of ours."""
        alive = [process.name for process in self.processes() if process.is_alive()]
        return alive + running_with(str(self.sockets))


def running_with(text: str) -> list[str]:
    """Return the command lines of living processes that hold this text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def become(runner: int, module: str, argv: Sequence[str], log: Path, sockets: Path, threads: int) -> None:
    """In a new process: be this program, say what it says into a file, and end with the runner."""
    import importlib

    import torch

    ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=die_with, args=(os.pidfd_open(runner),), daemon=True).start()
    os.environ["SWARM_SOCKETS"] = str(sockets)
    torch.set_num_threads(threads)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(importlib.import_module(module).main(argv))


def die_with(runner: int) -> None:
    """End this process when that of the file descriptor does: its parent is the fork server, which lives on."""
    select.select([runner], [], [])
    os.kill(os.getpid(), signal.SIGKILL)
