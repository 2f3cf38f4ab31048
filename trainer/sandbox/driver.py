"""What every driver of the sandbox provides."""

from __future__ import annotations

from typing import Protocol

from trainer.sandbox.process import SandboxProcess
from trainer.sandbox.spec import OutputStream, SandboxSpec


class SandboxDriver(Protocol):
    """One way of confining a command. Constructed without arguments."""

    name: str

    def find_problem(self) -> str | None:
        """Run a test command; return None if this driver works on this machine, else a sentence that says why not."""

    def start(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> SandboxProcess:
        """Start the command with empty standard input; raise `SandboxError` if it cannot be started."""
