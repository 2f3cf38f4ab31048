"""A job's dataset: found by its hash, downloaded, or prepared on this machine with the site's release and verified.

Not covered: a node whose Python or corpus differs from that of a site that has not published its season's files. It
prepares the dataset for every job again, and rejects the job.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.node.disk_quota import PREPARING
from trainer.node.job import Job
from trainer.node.outcome import JobFailedError
from trainer.protocol import DatasetPin, FileRef
from trainer.sandbox import Mount, ResourceLimits, SandboxSpec, get_driver
from trainer.sandbox.safe_files import parse_relative_path, sanitize_line

PYTHON_COMMAND = [sys.executable, "-s", "-P"]  # imports neither the user's own packages nor the current folder
TRAINING_FILES = ("manifest.json", "tokenizer.json", "train", "dev")
"""Files of a dataset that a job sees. The test split is not mounted."""
PREPARATION_LIMITS = ResourceLimits(wall_seconds=24 * 3600, memory_bytes=1 << 50, disk_bytes=1 << 60, processes=4096)
"""Limits of a preparation, which is trusted code: only the time is really limited."""
MAX_COMPILE_WORKERS = 32  # torch's default
PROCESSES_OF_COMPILE_WORKER = 3  # itself, gcc and what gcc starts
SECRET_VARIABLES = ("DAILYTRAIN_JOIN_TOKEN", "SECRET_KEY", "DATABASE_URL", "GITHUB_WEBHOOK_SECRET")


def ensure_dataset(job: Job, pin: DatasetPin) -> Path:
    """Return the dataset's folder, with at least the files that the order names.

    Raise `JobFailedError` if it cannot be prepared or its hash differs.
    """
    folder = job.context.home / "datasets" / pin.hash
    with job.context.dataset_locks.hold(pin.hash, job.check_stop):  # another slot may be preparing it
        missing = [file for file in pin.files or () if not is_complete(file, folder / parse_relative_path(file.path))]
        with job.context.quota.use_dataset(job.lease, pin.hash, sum(file.size for file in missing)):
            if pin.files:
                download_dataset(job, pin.hash, missing, folder)
            elif read_dataset_hash(folder) != pin.hash:
                prepare_and_verify(job, pin, folder)
    return folder


def download_dataset(job: Job, dataset_hash: str, missing: Sequence[FileRef], folder: Path) -> None:
    """Download what is missing. A file that an earlier job left unfinished continues where it broke off."""
    if missing:
        size = sum(file.size for file in missing)
        job.log(f"downloading its data: {len(missing)} files, {size / 1e6:,.0f} MB; this happens once.")
    for file in missing:
        job.check_stop()
        target = folder / parse_relative_path(file.path)
        partial = target.with_name(f".{target.name}.partial")
        job.download(file, partial)
        with partial.open("rb") as content:
            os.fsync(content.fileno())  # otherwise a power failure could leave a shorter file under the final name
        partial.replace(target)
    if read_dataset_hash(folder) != dataset_hash:
        shutil.rmtree(folder, ignore_errors=True)
        raise JobFailedError("The files of the dataset are not those of the hash that the job names.")


def is_complete(file: FileRef, target: Path) -> bool:
    return target.is_file() and target.stat().st_size == file.size


def prepare_and_verify(job: Job, pin: DatasetPin, folder: Path) -> None:
    job.log(f"preparing its data ({pin.corpus}); this happens once.")
    partial = folder.with_name(f"{PREPARING}-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        run_preparation(job, pin, partial)
        found = read_dataset_hash(partial)
        if found != pin.hash:
            corpus = sanitize_line(pin.corpus, 80)
            raise JobFailedError(
                f"This node prepared a different dataset {corpus}: its hash is {found}, the job needs {pin.hash}."
            )
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def run_preparation(job: Job, pin: DatasetPin, folder: Path) -> None:
    command = [*PYTHON_COMMAND, "-m", "trainer.cli.prepare", "--corpus", pin.corpus, "--tokenizer", pin.tokenizer]
    if pin.limit_bytes is not None:
        command += ["--limit-bytes", str(pin.limit_bytes)]
    command += ["--out", str(folder), "--json", "--quiet"]
    spec = build_trusted_spec(job, command, PREPARATION_LIMITS)
    output = job.workspace.scratch / "prepared.json"
    process = job.run_process(get_driver("none"), spec, phase="preparing", output=output)
    if process.poll() != 0:
        corpus = sanitize_line(pin.corpus, 80)
        raise JobFailedError(f"This node could not prepare the dataset {corpus}; its log says why.")


def read_dataset_hash(folder: Path) -> str | None:
    """Return the hash in a prepared dataset's manifest; None without a manifest, which is written last."""
    try:
        return str(json.loads((folder / "manifest.json").read_bytes())["hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mount_training_files(dataset: Path) -> list[Mount]:
    return [Mount(dataset / name) for name in TRAINING_FILES if (dataset / name).exists()]


def build_trusted_spec(job: Job, command: list[str], limits: ResourceLimits) -> SandboxSpec:
    """Return a spec for the site's own code: run from the unmodified release, never from the folder with the entry."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    environment |= build_python_environment(job, job.workspace.release) | {"TMPDIR": str(job.workspace.scratch)}
    mounts = [Mount(job.workspace.scratch, writable=True)]
    return SandboxSpec(command, environment, mounts, job.workspace.release, limits)


def build_entry_environment(job: Job, devices: int | None = None) -> dict[str, str]:
    """Return the environment of a sandbox that runs the entry's code. It sees `devices` GPUs of the slot; None: all."""
    return build_python_environment(job, job.workspace.source, devices) | {"HF_HUB_OFFLINE": "1"}


def build_python_environment(job: Job, source: Path, devices: int | None = None) -> dict[str, str]:
    slot = job.context.slot if devices is None else job.context.slot.limit_gpus(devices)
    variables = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    cores = len(slot.processors) or os.cpu_count() or 1
    workers = count_compile_workers(job.limits.processes, max(1, len(slot.gpus)), cores)
    return slot.build_environment() | variables | {"TORCHINDUCTOR_COMPILE_THREADS": str(workers)}


def count_compile_workers(processes: int, devices: int, cores: int) -> int:
    """Return the processes in which torch.compile generates code for each device, so that all fit the job's limit.

    torch's own default is 32 for each device. Each worker may start a compiler and that one another program.
    """
    # A device also has its training process and the parent of its workers; 8 are for the sandbox and the launcher.
    allowed = (processes - 8 - 2 * devices) // (PROCESSES_OF_COMPILE_WORKER * devices)
    return max(1, min(MAX_COMPILE_WORKERS, cores // devices, allowed))
