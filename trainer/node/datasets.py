"""A job's dataset: found by its hash, or prepared here by the site's release and then compared.

Not covered: a node whose Python or corpus differs prepares the dataset again for every job that it has to refuse.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.node.outcome import JobFailedError
from trainer.protocol import DatasetPin
from trainer.sandbox import Mount, ResourceLimits, SandboxSpec, get_driver
from trainer.sandbox.safe_files import sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

PYTHON_COMMAND = [sys.executable, "-s", "-P"]
"""Neither the user's own packages nor the current folder are imported from."""
PREPARATION_LIMITS = ResourceLimits(wall_seconds=24 * 3600, memory_bytes=1 << 50, disk_bytes=1 << 60, processes=4096)
"""Our own code: limited only so that it ends."""
POLL_SECONDS = 0.2
"""Seconds between two looks at what is wished of the job."""
SECRET_VARIABLES = ("DAILYTRAIN_JOIN_TOKEN", "SECRET_KEY", "DATABASE_URL", "GITHUB_WEBHOOK_SECRET")


def ensure_dataset(job: Job, pin: DatasetPin) -> Path:
    """Return the dataset's folder; raise `Failed` if this node's copy has another hash or cannot be made."""
    folder = job.place.home / "datasets" / pin.hash
    while not job.place.preparing.acquire(
        timeout=POLL_SECONDS
    ):  # one lane at a time: another may be preparing this one
        job.check_wishes()
    try:
        return folder if read_dataset_hash(folder) == pin.hash else prepare_and_verify(job, pin, folder)
    finally:
        job.place.preparing.release()


def prepare_and_verify(job: Job, pin: DatasetPin, folder: Path) -> Path:
    job.say(f"preparing its data ({pin.corpus}); this happens once.")
    aside = folder.with_name(".preparing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    try:
        run_preparation(job, pin, aside)
        found = read_dataset_hash(aside)
        if found != pin.hash:
            raise JobFailedError(
                f"This node's copy of the dataset {sanitize_line(pin.corpus, 80)} is another one: "
                f"its hash is {found}, the job's {pin.hash}."
            )
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def run_preparation(job: Job, pin: DatasetPin, folder: Path) -> None:
    command = [*PYTHON_COMMAND, "-m", "trainer.cli.prepare", "--corpus", pin.corpus, "--tokenizer", pin.tokenizer]
    if pin.limit_bytes is not None:
        command += ["--limit-bytes", str(pin.limit_bytes)]
    command += ["--out", str(folder), "--json", "--quiet"]
    answer = job.workspace.scratch / "prepared.json"
    process = job.run(
        get_driver("none"), build_trusted_spec(job, command, PREPARATION_LIMITS), phase="preparing", output=answer
    )
    if process.poll() != 0:
        raise JobFailedError(
            f"This node could not prepare the dataset {sanitize_line(pin.corpus, 80)}; its log says why."
        )


def read_dataset_hash(folder: Path) -> str | None:
    """Return what a prepared dataset's manifest says, None if there is none (it is written last)."""
    try:
        return str(json.loads((folder / "manifest.json").read_bytes())["hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def build_trusted_spec(job: Job, command: list[str], limits: ResourceLimits) -> SandboxSpec:
    """A box for the site's own code: from the pure release, never from the folder with the entry in it."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    environment |= job.place.lane.environment() | {
        "PYTHONPATH": str(job.workspace.release),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(job.workspace.scratch),
    }
    return SandboxSpec(
        command, environment, [Mount(job.workspace.scratch, writable=True)], job.workspace.release, limits
    )
