"""Run untrusted code on a lent machine.

    spec = SandboxSpec(command, environment, mounts, folder, ResourceLimits(...))
    get_driver("bubblewrap").start(spec, stdout, stderr)

A driver is a file with one class and one line in `DRIVERS`. The node and the smoke test use this package, so it imports
only the standard library and psutil.
"""

from __future__ import annotations

from trainer.sandbox.bubblewrap import BubblewrapDriver
from trainer.sandbox.docker import DockerDriver
from trainer.sandbox.process import SandboxDriver, SandboxProcess
from trainer.sandbox.spec import Mount, ResourceLimits, SandboxError, SandboxSpec
from trainer.sandbox.unsandboxed import UnsandboxedDriver

__all__ = [
    "DRIVERS",
    "Mount",
    "ResourceLimits",
    "SandboxDriver",
    "SandboxError",
    "SandboxProcess",
    "SandboxSpec",
    "get_driver",
]

DRIVERS: dict[str, type[SandboxDriver]] = {
    "bubblewrap": BubblewrapDriver,
    "docker": DockerDriver,
    "none": UnsandboxedDriver,
}


def get_driver(name: str) -> SandboxDriver:
    """Return the driver of that name; raise `SandboxError` with the known names if there is none."""
    if name not in DRIVERS:
        raise SandboxError(f"There is no sandbox called {name!r}; known: {', '.join(DRIVERS)}.")
    return DRIVERS[name]()
