"""Python processes that start with torch loaded: forked from a server instead of executed, which saves seconds each.

`ForkedPopen` takes the place of `subprocess.Popen`. It forks `python -m trainer.x` and executes everything else. The
process is real: it has an id, a session, an environment, a folder and output of its own, takes signals, and imports
`trainer` itself, from the PYTHONPATH of the command. But /proc shows the server's command line and environment, and
strings have the server's hashes. Not forked: agents, and whatever runs under coverage.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

PRELOADED = ("torch", "safetensors.torch", "tokenizers", "pydantic", "rich.progress", "lightning_fabric")
START_VARIABLES = ("OMP_", "GOMP_", "MKL_", "LD_", "PYTHONHASHSEED", "PYTHONWARNINGS")
"""Prefixes of variables that are read when a process or a library starts. The server refuses others than its own."""
AGENTS = ("node", "rephrase", "swarm")  # commands of `trainer.cli`
REQUEST_BYTES = 200_000
PR_SET_PDEATHSIG = 1
SITECUSTOMIZE = "from tests.support import fork_server\nfork_server.fork_jobs_of_node({address!r})\n"


# --- client ----------------------------------------------------------------------------------------------------------


class ForkedPopen(subprocess.Popen[Any]):
    address = ""
    """Socket of the server."""
    _server: socket.socket | None = None  # open as long as the process runs; sends its exit status

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:  # type: ignore[override]
        _, pass_fds, cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest = others
        is_plain = isinstance(args, list | tuple) and not (executable or preexec_fn or pass_fds or shell)
        module, arguments, prefix = parse_command(args) if is_plain else (None, [], [])
        if module is not None:
            request = {
                "module": module,
                "arguments": arguments,
                "command": [os.fspath(word) for word in args],
                "environment": dict(os.environ if env is None else env),
                "folder": os.fspath(cwd) if cwd is not None else str(Path.cwd()),
                "cores": [*os.sched_getaffinity(0)],
                "has_session": bool(rest[-2]),
                "ends_with_client": "setpriv" in prefix,
            }
            streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
            if self._request_fork(request, streams):
                self._child_created = True
                self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
                return
        super()._execute_child(args, executable, preexec_fn, *others)

    def _request_fork(self, request: dict[str, Any], streams: list[int]) -> bool:
        """Return whether the server has forked the process, and set `pid`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.connect(self.address)
            socket.send_fds(server, [json.dumps(request).encode()], streams)
            if not (pid := int(server.recv(100))):
                return False
            self.pid, self._server = pid, server.dup()
        return True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._server is None:
            return super()._try_wait(wait_flags)
        if not select.select([self._server], [], [], 0 if wait_flags else None)[0]:
            return 0, 0
        status = self._server.recv(100) or signal.SIGKILL  # nothing: the server was killed
        self._server.close()
        return self.pid, int(status)

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._server is None:
            return super()._internal_poll(*arguments, **options)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def parse_command(command: Sequence[Any]) -> tuple[str | None, list[str], list[str]]:
    """Return `x`, its arguments and what stands before Python in `setpriv ... -- python -s -P -m x ...`.

    Without x if that is not to be forked.
    """
    words, prefix = [os.fspath(word) for word in command], []
    if words[0] == "setpriv" and "--" in words:
        end = words.index("--") + 1
        words, prefix = words[end:], words[:end]
    flags = [word for word in words[1:3] if word in ("-s", "-P")]
    option, module, *arguments = [*words[1 + len(flags) :], "", ""]
    is_agent = module == "trainer.cli" and arguments[0] in AGENTS
    if words[0] != sys.executable or option != "-m" or not module.startswith("trainer.") or is_agent:
        return None, [], []
    return module, arguments[:-2], prefix


def fork_jobs_of_node(address: str) -> None:
    """Let this process, if it is a node's, fork its jobs and those for bubblewrap, too."""
    if not {"node", "dailytrain.rehearsal.node"} & {*sys.orig_argv}:
        return
    from trainer.sandbox import DRIVERS
    from trainer.sandbox.unsandboxed import UnsandboxedDriver

    DRIVERS["bubblewrap"] = type("ForkingDriver", (UnsandboxedDriver,), {"name": "bubblewrap"})
    ForkedPopen.address = address
    subprocess.Popen = ForkedPopen  # type: ignore[misc]


@dataclass
class ForkServer:
    address: str
    environment: dict[str, str]
    """Of programs whose nodes shall fork their jobs."""
    process: subprocess.Popen[bytes]

    def list_forked(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]


@contextmanager
def run_fork_server() -> Iterator[ForkServer]:
    with (
        tempfile.TemporaryDirectory(prefix="forks-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        address = f"{folder}/socket"
        listener.bind(address)
        listener.listen(100)
        Path(folder, "sitecustomize.py").write_text(SITECUSTOMIZE.format(address=address))
        command = [sys.executable, "-s", "-P", "-m", "tests.support.fork_server", address, str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], start_new_session=True)
        listener.close()  # refuses connections when the server has ended
        try:
            yield ForkServer(address, {"PYTHONPATH": folder}, process)
        finally:
            process.kill()
            process.wait()


# --- server ----------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    listener: socket.socket
    variables: dict[str, str]
    clients: dict[int, socket.socket] = field(default_factory=dict)  # by process
    ending_with_client: set[int] = field(default_factory=set)

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Fork a process for each request. Returns in each forked one: its request and its standard streams."""
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno())
        while True:
            ready, _, _ = select.select([self.listener, woken, *self.clients.values()], [], [])
            if woken in ready:
                woken.recv(1000)
            self._report_ended()
            for pid in [pid for pid, client in self.clients.items() if client in ready]:
                self._forget_client(pid)
            if self.listener in ready and (forked := self._accept()):
                for other in (self.listener, woken, waker, *self.clients.values()):
                    other.detach()  # closed by number, with everything else
                return forked

    def _accept(self) -> tuple[dict[str, Any], list[int]] | None:
        client, _ = self.listener.accept()
        message, streams, _, _ = socket.recv_fds(client, REQUEST_BYTES, 3)
        request = json.loads(message)
        pid = os.fork() if self._can_fork(request["environment"]) else None
        if pid == 0:
            client.detach()
            return request, streams
        for stream in streams:
            os.close(stream)
        client.send(str(pid or 0).encode())
        if pid is None:
            client.close()
            return None
        self.clients[pid] = client
        if request["ends_with_client"]:
            self.ending_with_client.add(pid)
        return None

    def _can_fork(self, environment: Mapping[str, str]) -> bool:
        has_hook = any(Path(folder, "sitecustomize.py").exists() for folder in list_import_folders(environment))
        is_measured = "COVERAGE_PROCESS_CONFIG" in environment
        return select_start_variables(environment) == self.variables and not (has_hook or is_measured)

    def _report_ended(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.ending_with_client.discard(pid)
                if client := self.clients.pop(pid, None):
                    with suppress(OSError):
                        client.send(str(status).encode())
                    client.close()

    def _forget_client(self, pid: int) -> None:
        """The client has ended or does not wait: as with setpriv, its process is killed."""
        self.clients.pop(pid).close()
        if pid in self.ending_with_client:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def list_import_folders(environment: Mapping[str, str]) -> list[str]:
    return [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


def select_start_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(START_VARIABLES)}


def adopt(request: dict[str, Any], streams: list[int]) -> None:
    """Give this forked process what the request names, as if it had been executed."""
    if request["has_session"]:
        os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open_output(1, "strict", is_line_buffered=False)
    sys.stderr = sys.__stderr__ = open_output(2, "backslashreplace", is_line_buffered=True)
    first = [] if "-P" in request["command"] else [request["folder"]]
    sys.path[:0] = [*first, *list_import_folders(os.environ)]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.orig_argv, sys.argv = request["command"], ["-m", *request["arguments"]]
    if workers := os.environ.get("TORCHINDUCTOR_COMPILE_THREADS"):  # read when it was imported
        sys.modules["torch._inductor.config"].compile_threads = int(workers)  # type: ignore[attr-defined]
    sys.modules["numpy"].random.seed()  # Python's own generator is seeded at each fork


def open_output(number: int, errors: str, is_line_buffered: bool) -> io.TextIOWrapper:
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    binary = open(number, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        binary, encoding="utf-8", errors=errors, line_buffering=is_line_buffered, write_through=is_unbuffered
    )


def main(address: str, listener: str) -> None:
    ForkedPopen.address = address
    subprocess.Popen = ForkedPopen  # type: ignore[misc]  # a forked process forks its own
    sys.modules["torchmetrics"] = None  # type: ignore[assignment]  # as `trainer.distributed.devices.import_fabric`
    for name in PRELOADED:
        importlib.import_module(name)
    del sys.modules["torchmetrics"]
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a thread would be lost in a forked process"
    assert "trainer" not in sys.modules
    gc.collect()
    gc.freeze()
    server = Server(socket.socket(fileno=int(listener)), select_start_variables(os.environ))
    request, streams = server.serve()
    adopt(request, streams)
    sys.modules["forked_from"], sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        runpy._run_module_as_main(request["module"], alter_argv=True)  # type: ignore[attr-defined]
    except KeyboardInterrupt:  # ends by the signal, as Python does
        traceback.print_exc()
        atexit._run_exitfuncs()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main(*sys.argv[1:])
