"""The driver `none`: a plain process group, for your own code on your own machine, only when requested by name.

Limits are metered and the group is killed. Not covered: everything else. The code sees the files, the network and the
processes of the user who started it; a process that leaves the group and its parents survives.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from trainer.sandbox.process import SandboxProcess
from trainer.sandbox.spec import OutputStream, SandboxSpec


class UnsandboxedDriver:
    name = "none"

    def find_problem(self) -> str | None:
        return None

    def start(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> SandboxProcess:
        return UnsandboxedProcess(spec, stdout, stderr).start()


class UnsandboxedProcess(SandboxProcess):
    def _launch(self) -> subprocess.Popen[bytes]:
        spec, defaults = self._spec, {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home())}
        environment = {**defaults, "LANG": "C.UTF-8", **spec.environment}
        command = [*build_command_prefix(), *spec.command]
        return self._spawn(command, env=environment, cwd=spec.folder)

    def terminate(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        descendants: list[psutil.Process] = []
        with suppress(psutil.Error):
            descendants = psutil.Process(self.pid).children(recursive=True)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in descendants:
            with suppress(psutil.Error):
                process.kill()


def build_command_prefix() -> list[str]:
    """Return the programs that kill the command when its parent dies and disable core files, if they are installed."""
    words = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return [*words, "prlimit", "--core=0", "--"] if shutil.which("prlimit") else words
