"""A whole swarm on this machine: a coordinator and workers, each in its own process, over real sockets.

Processes are forked from one that has imported everything already (`forkserver`), so a new worker starts quickly.
Killed workers are replaced, and a killed coordinator is restarted from its journal. All processes end with this one.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import multiprocessing
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import torch

from trainer.distributed.ports import find_free_port
from trainer.swarm.config import SwarmConfig
from trainer.swarm.coordinator import ADDRESS_FILE
from trainer.swarm.fault_injection import Fault
from trainer.swarm.journal import JournalLine, JournalState, read_journal
from trainer.swarm.transport import SOCKET_FOLDER_VARIABLE, set_environment

COORDINATOR_MODULE, WORKER_MODULE = "trainer.swarm.coordinator_main", "trainer.swarm.worker_main"
PRELOADED_MODULES = ["hivemind.p2p", COORDINATOR_MODULE, WORKER_MODULE]
PR_SET_PDEATHSIG = 1  # Option of prctl(2): the signal that a process receives when its parent dies
HANG_SECONDS = 300.0  # Time limit for a process to start or to end. Only a process that hangs reaches it.


class SwarmStuckError(Exception):
    """The swarm did not finish in time, or a process failed."""


@dataclass
class FaultPlan:
    """Which processes of a local swarm fail, when and how."""

    workers: Mapping[str, Sequence[Fault]] = field(default_factory=dict)
    """Faults of workers by name: worker-0, worker-1, ... in the order in which they start."""
    coordinator: Sequence[Sequence[Fault]] = ()  # Faults of the coordinator's first process, its second, and so on
    requested_stages: Sequence[int | None] = ()  # The stage of each worker; empty: as many for each stage
    rebalance_seconds: float = 300.0
    required_members: Mapping[int, int] = field(default_factory=dict)
    """Steps that wait for exactly this many members, because the speed of joins depends on the machine."""
    replace_killed: bool = True  # Whether a killed worker is replaced
    on_tick: Callable[[LocalSwarm], None] = lambda swarm: None  # Called repeatedly while the swarm runs
    has_happened: Callable[[Sequence[JournalLine]], bool] = lambda lines: True
    """Whether the journal shows the planned events."""


@dataclass
class WorkerProcess:
    process: BaseProcess
    name: str
    requested_stage: int | None


@dataclass
class LocalSwarm:
    """A swarm of processes. Use it as `with LocalSwarm(...) as swarm: swarm.run(seconds)`."""

    config: SwarmConfig
    dataset: Path
    requested_stages: Sequence[int | None]  # The requested stage of each worker at the start
    plan: FaultPlan = field(default_factory=FaultPlan)
    timeout: float = 3.0  # Seconds after which a silent peer is evicted
    out: Path | None = None
    """Folder to keep journal, checkpoints and logs in; None: a temporary one. A run that is there is resumed."""
    links: Callable[[int], int] | None = None
    """Maps a process's port to the port that others should dial, for simulated links."""
    undialable: Collection[str] = ()
    """Workers without a port: reachable over their own connections, or through the coordinator."""
    kills: int = 0
    workers: list[WorkerProcess] = field(default_factory=list)
    coordinator: BaseProcess | None = None

    def __enter__(self) -> Self:
        self.base = Path(tempfile.mkdtemp(prefix="swarm-"))
        self.folder = self.out or self.base / "run"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.old_address = self.get_address_time()  # of an earlier coordinator, or of one that still runs
        self.sockets = self.base / "s"
        self.sockets.mkdir()
        set_environment()  # the fork server imports hivemind at once
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED_MODULES)
        self.numbers, self.starts, self.port = itertools.count(), itertools.count(), find_free_port()
        (self.base / "config.json").write_text(self.config.model_dump_json())
        self.start_coordinator()
        for stage in self.requested_stages:
            self.add_worker(stage)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.list_processes():
            process.kill()
        for process in self.list_processes():
            process.join()
        shutil.rmtree(self.base, ignore_errors=True)

    def list_processes(self) -> list[BaseProcess]:
        return [worker.process for worker in self.workers] + ([self.coordinator] if self.coordinator else [])

    # --- starting processes ---

    def start_process(self, name: str, module: str, flags: Sequence[Any], faults: Sequence[Fault]) -> BaseProcess:
        argv = list(map(str, flags))
        if faults:
            argv += ["--faults", json.dumps([fault.model_dump() for fault in faults])]
        log = self.folder / f"{name}.log"
        arguments = os.getpid(), module, argv, log, self.sockets
        process = self.context.Process(target=run_child, args=arguments, name=name, daemon=True)
        process.start()
        return process

    def start_coordinator(self) -> None:
        """Start the coordinator, for the first time or again."""
        number = next(self.starts)
        faults = self.plan.coordinator[number] if number < len(self.plan.coordinator) else ()
        flags = ["--out", self.folder, "--dataset", self.dataset, "--config", self.base / "config.json"]
        flags += ["--listen", f"127.0.0.1:{self.port}", "--peers", len(self.requested_stages)]
        flags += ["--timeout", self.timeout, "--rebalance-every", self.plan.rebalance_seconds]
        flags += [f"--wait-for={step}:{members}" for step, members in self.plan.required_members.items()]
        flags += ["--serve-as-relay"] if self.undialable else []
        flags += self.build_announce_flags(self.port)
        self.coordinator = self.start_process(f"coordinator-{number}", COORDINATOR_MODULE, flags, faults)

    def add_worker(self, stage: int | None = None) -> WorkerProcess:
        """Start one more worker."""
        name = f"worker-{next(self.numbers)}"
        flags = ["--coordinator", self.wait_for_address(), "--home", self.base / name, "--name", name]
        flags += ["--preferred-stage", stage] if stage is not None else []
        flags += self.build_network_flags(name)
        process = self.start_process(name, WORKER_MODULE, flags, self.plan.workers.get(name, ()))
        self.workers.append(WorkerProcess(process, name, stage))
        return self.workers[-1]

    def build_network_flags(self, name: str) -> list[str]:
        if name in self.undialable:
            return ["--behind-nat"]
        port = find_free_port()
        return ["--listen", f"127.0.0.1:{port}", *self.build_announce_flags(port)] if self.links else []

    def build_announce_flags(self, port: int) -> list[str]:
        return ["--announce", f"/ip4/127.0.0.1/tcp/{self.links(port)}"] if self.links else []

    def wait_for_address(self, seconds: float = HANG_SECONDS) -> str:
        """Return the coordinator's address as soon as it has one."""
        deadline = time.monotonic() + seconds
        while self.get_address_time() == self.old_address:
            self.replace_killed()
            if time.monotonic() > deadline:
                raise SwarmStuckError(f"the coordinator did not start: {self.read_log_tail('coordinator-0')}")
            time.sleep(0.02)
        return str(json.loads((self.folder / ADDRESS_FILE).read_text())["addresses"][0])

    def get_address_time(self) -> int | None:
        """Return when the folder's address was written, in ns; None without one."""
        file = self.folder / ADDRESS_FILE
        return file.stat().st_mtime_ns if file.exists() else None

    # --- running ---

    def run(self, seconds: float) -> list[JournalLine]:
        """Wait for the end of the run, replacing killed processes; return the journal."""
        deadline = time.monotonic() + seconds
        while self.coordinator is None or self.coordinator.exitcode != 0:
            self.replace_killed()
            self.plan.on_tick(self)
            if time.monotonic() > deadline:
                step, tail = self.count_steps(), self.read_log_tail("coordinator-0")
                raise SwarmStuckError(f"not finished after {seconds:.0f} s, at step {step}: {tail}")
            time.sleep(0.02)
        self.wait_for_workers()
        return self.read_journal()

    def wait_for_workers(self) -> None:
        """Wait for the workers to end. Those that joined too late to be notified are terminated."""
        deadline = time.monotonic() + 2
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(HANG_SECONDS)

    def replace_killed(self) -> None:
        """Count and replace killed processes. Raise `SwarmStuckError` if one ended in any other way."""
        if self.coordinator is not None and self.coordinator.exitcode not in (None, 0):
            self.count_kill(self.coordinator)
            self.start_coordinator()
        for worker in [w for w in self.workers if w.process.exitcode not in (None, 0)]:
            self.count_kill(worker.process)
            self.workers.remove(worker)
            if self.plan.replace_killed:
                self.add_worker(worker.requested_stage)

    def count_kill(self, process: BaseProcess) -> None:
        if process.exitcode != -signal.SIGKILL:
            tail = self.read_log_tail(process.name)
            raise SwarmStuckError(f"{process.name} ended with {process.exitcode}: {tail}")
        self.kills += 1

    # --- observing ---

    def read_journal(self) -> list[JournalLine]:
        return read_journal(self.folder)

    def count_steps(self) -> int:
        return sum(line["kind"] == "commit" for line in self.read_journal())

    def get_member_stages(self) -> dict[str, int]:
        """Return the members' names (worker-0, ...) and their stages."""
        members = JournalState.from_lines(self.read_journal()).members
        return {line["label"]: line["stage"] for line in members.values()}

    def find_process(self, name: str) -> BaseProcess:
        return next(worker.process for worker in self.workers if worker.name == name)

    def read_log_tail(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace")[-1500:] if file.exists() else "no log"

    def find_leftovers(self) -> list[str]:
        """Return processes that should have ended: workers, and command lines of daemons with sockets of this swarm."""
        alive = [process.name for process in self.list_processes() if process.is_alive()]
        return alive + find_processes(str(self.sockets))


def find_processes(text: str) -> list[str]:
    """Return the command lines of running processes that contain this text."""
    commands = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return [command for command in commands if text in command]


def run_child(runner: int, module: str, argv: Sequence[str], log: Path, sockets: Path) -> None:
    """Run a module's `main` in a new process, with its output in a log file, until the process `runner` ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=exit_with_process, args=(os.pidfd_open(runner),), daemon=True).start()
    os.environ[SOCKET_FOLDER_VARIABLE] = str(sockets)
    torch.set_num_threads(1)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(importlib.import_module(module).main(argv))


def exit_with_process(pidfd: int) -> None:
    """Kill this process when another ends. The parent is the fork server, which outlives the runner."""
    select.select([pidfd], [], [])
    os.kill(os.getpid(), signal.SIGKILL)
