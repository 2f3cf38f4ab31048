"""A node of a rehearsal: it reports GPUs that this machine does not have, and runs every job on CPU cores.

Or it reports its own, with the labels of the track, and runs jobs on them.

    python -m dailytrain.rehearsal.node --server http://127.0.0.1:PORT --hardware JSON ...

The agent is the real one; only its report to the site differs. The program is no part of the package that nodes
install, it joins sites on this machine alone, and it needs a join token like any node, which a rehearsal's site makes
for itself. To a production site a report of hardware proves nothing anyway: probes measure a node's speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel

from trainer import protocol
from trainer.cli.join_site import NodeError, add_site_arguments, join_site
from trainer.errors import ExitCode, print_error
from trainer.node.agent import Agent
from trainer.node.client import SiteClient
from trainer.node.gpus import UnreadableGpuReader
from trainer.node.hardware import derive_labels
from trainer.sandbox import get_driver

COMMAND = "python -m dailytrain.rehearsal.node"


class ReportedHardware(BaseModel):
    """Hardware that the node reports instead of its own."""

    gpus: tuple[protocol.Gpu, ...] | None
    """None: this machine's own, on which jobs then run."""
    memory_bytes: int
    disk_free_bytes: int
    labels: tuple[str, ...] = ()
    """Labels in addition to those of the hardware."""


class RehearsalAgent(Agent):
    reported: ReportedHardware

    def detect_hardware(self) -> protocol.Hardware:
        hardware, reported = super().detect_hardware(), self.reported
        disk_bytes = max(hardware.disk_free_bytes, reported.disk_free_bytes)
        gpus = hardware.gpu_details if reported.gpus is None else reported.gpus
        return hardware.model_copy(
            update={
                "gpus": tuple(gpu.name for gpu in gpus),
                "gpu_details": gpus,
                "memory_bytes": max(hardware.memory_bytes, reported.memory_bytes),
                "disk_free_bytes": disk_bytes,
                "found_labels": (*derive_labels(gpus, disk_bytes), *reported.labels),
            }
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    add_site_arguments(parser, home="node", name="node", once_help="leave after one job")
    parser.add_argument("--hardware", type=ReportedHardware.model_validate_json, required=True)
    options = parser.parse_args(argv)
    if urlsplit(options.server).hostname != "127.0.0.1":
        return print_error(COMMAND, "It joins sites on this machine only.", ExitCode.USER_ERROR)

    def build_agent(client: SiteClient, home: Path) -> Agent:
        sandbox = get_driver("bubblewrap")
        if problem := sandbox.find_problem():
            raise NodeError(problem)
        reader = None if options.hardware.gpus is None else UnreadableGpuReader()
        agent = RehearsalAgent(client, home, sandbox, (sandbox.name,), gpu_reader=reader)
        agent.reported = options.hardware
        return agent

    return join_site(COMMAND, options, build_agent, can_volunteer=False)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
