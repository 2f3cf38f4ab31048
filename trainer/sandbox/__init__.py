"""Running a stranger's code on a lent machine.

    driver("bubblewrap").start(Box(command, environment, mounts, folder, Limits(...)), stdout=..., stderr=...)

A driver is a file with one class and one line in `DRIVERS`. Standard library only: the sponsor's agent and the
scorer both stand on it.
"""

from __future__ import annotations

from trainer.sandbox.box import Box, Driver, Limits, Mount, SandboxError
from trainer.sandbox.bubblewrap import Bubblewrap
from trainer.sandbox.docker import Docker
from trainer.sandbox.none import Unsandboxed
from trainer.sandbox.process import Process

__all__ = ["DRIVERS", "Box", "Driver", "Limits", "Mount", "Process", "SandboxError", "driver"]

DRIVERS: dict[str, type[Driver]] = {
    "bubblewrap": Bubblewrap,
    "docker": Docker,
    "none": Unsandboxed,
}


def driver(name: str) -> Driver:
    """Return the driver of that name; `SandboxError` names the known ones."""
    if name not in DRIVERS:
        raise SandboxError(f"There is no sandbox called {name!r}; known: {', '.join(DRIVERS)}.")
    return DRIVERS[name]()
