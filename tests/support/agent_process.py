"""A real agent process, and jobs for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support import stdlib_release
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer import protocol
from trainer.cli.main import main
from trainer.node import client
from trainer.node.client import SiteClient
from trainer.node.console import log

LIMITS = protocol.JobLimits(wall_seconds=WAIT_SECONDS, memory_bytes=10**9, disk_bytes=20_000_000, processes=8)
CORPUS = "python-docs"
HASH = "b" * 64
"""Hash of the dataset that the small release prepares."""


class Node:
    """One agent process, started and stopped by a test."""

    def __init__(self, site: NodeApiServer, home: Path) -> None:
        self.site = site
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        self.output = home.with_suffix(".stderr")

    def start(self, *words: str, token: str | None = "join-me", sandbox: str = "bubblewrap") -> Node:  # noqa: S107
        command = [sys.executable, "-m", "trainer.cli", *self.build_command(words, token, sandbox)]
        with self.output.open("ab") as output:
            environment = {**os.environ, **self.variables}
            self.process = subprocess.Popen(command, stderr=output, stdout=output, env=environment)
        return self

    def run(self, *words: str, token: str | None = "join-me", sandbox: str = "none") -> int:  # noqa: S107
        """Run the agent in this process until it ends; return its exit code."""
        clients: list[SiteClient] = []

        def open_client(*arguments: Any, **options: Any) -> SiteClient:
            clients.append(SiteClient(*arguments, **options))
            return clients[-1]

        with (
            self.output.open("a") as output,
            contextlib.redirect_stderr(output),
            mock.patch.dict(os.environ, self.variables),
            mock.patch.object(log, "handlers", []),
            mock.patch.object(client, "SiteClient", open_client),
        ):
            code = main(self.build_command(words, token, sandbox))
        for each in clients:
            each.close()
        return code

    def build_command(self, words: Sequence[str], token: str | None, sandbox: str) -> list[str]:
        command = ["node", "--server", self.site.address, "--home", str(self.home), "--name", "test"]
        return [*command, "--sandbox", sandbox, *(["--token", token] if token else []), *words]

    @property
    def variables(self) -> dict[str, str]:
        return {"PREPARATIONS": str(self.home.with_suffix(".preparations")), "SECRET_KEY": "secret"}

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(WAIT_SECONDS)

    def read_output(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def build_job(
    site: NodeApiServer, order: protocol.Order, entry: bool = True, limits: protocol.JobLimits = LIMITS
) -> protocol.JobSpec:
    release = site.store_blob(stdlib_release.build_tar(stdlib_release.FILES), "release.tar")
    overlay = site.store_blob(stdlib_release.build_tar(stdlib_release.ENTRY), "entry.tar") if entry else None
    return protocol.JobSpec(
        job=12, lease=0, node=0, attempt=1, release=release, entry=overlay, order=order, limits=limits, issued_at=0
    )


def build_dataset_pin(hash: str = HASH) -> protocol.DatasetPin:
    return protocol.DatasetPin(corpus=CORPUS, tokenizer="bpe:256", hash=hash)


def build_training_job(
    site: NodeApiServer,
    resume: protocol.Checkpoint | None = None,
    probe: protocol.ProbeSpec | None = None,
    **config: Any,
) -> protocol.JobSpec:
    limits = LIMITS.model_copy(update=config.pop("limits", {}))
    order = protocol.TrainOrder(dataset=build_dataset_pin(), config={"steps": 20, **config}, resume=resume, probe=probe)
    return build_job(site, order, limits=limits)


def wait_until_finished(site: NodeApiServer, lease: int) -> LeaseRecord:
    wait_until(lambda: lease in site.leases and site.leases[lease].finish is not None)
    return site.leases[lease]


def run_job(site: NodeApiServer, spec: protocol.JobSpec) -> LeaseRecord:
    """Queue a job for a running agent and wait for its end."""
    return wait_until_finished(site, site.queue_job(spec))


def list_running_processes(home: Path) -> list[int]:
    """Return the processes, other than agents, whose command line names the node's folder."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                line = path.joinpath("cmdline").read_text()
            except OSError:
                continue
            if str(home) in line and "trainer.cli" not in line:
                found.append(int(path.name))
    return found
