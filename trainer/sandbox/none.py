"""No sandbox: a plain process group, for one's own code on one's own machine, and only when asked for by name.

The limits are metered, and the group is killed. Not covered: everything else. The code sees the files, the network
and the processes of whoever started it; a process that leaves the group and its parents stays behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from trainer.sandbox.box import Box, SandboxError, Stream
from trainer.sandbox.meter import PROC, Meter, Tree
from trainer.sandbox.process import Process


class Unsandboxed:
    name = "none"

    def why_not(self) -> str | None:
        return None

    def start(self, box: Box, stdout: Stream, stderr: Stream) -> Process:
        return UnsandboxedProcess(box, stdout, stderr).begin()


class UnsandboxedProcess(Process):
    def __init__(self, box: Box, stdout: Stream, stderr: Stream) -> None:
        super().__init__(Meter(box))
        self._box = box
        self._streams = stdout, stderr

    def _launch(self) -> subprocess.Popen[bytes]:
        box = self._box
        try:
            return subprocess.Popen(
                [*prefix(), *box.command],
                stdin=subprocess.DEVNULL,
                stdout=self._streams[0],
                stderr=self._streams[1],
                env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home()), "LANG": "C.UTF-8"}
                | dict(box.environment),
                cwd=box.folder,
                pass_fds=box.pass_fds,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"{box.command[0]} could not be started: {error}.") from error

    def stop(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def _destroy(self) -> None:
        below = Tree().members(self.pid, enough=100_000) if PROC.joinpath("self/stat").exists() else []
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in below:
            if pid != self.pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def prefix() -> list[str]:
    """Return the words before the command that let it die with us and leave no core file, where the machine can."""
    words = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return [*words, "prlimit", "--core=0", "--"] if shutil.which("prlimit") else words
