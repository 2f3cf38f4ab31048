"""A swarm's jobs: the coordinator of a run, a worker that computes one stage, and text for a visitor.

They connect to other machines, so they run in no sandbox: the code is the site's own release with a built-in
architecture, without any file of an entry (`build_trusted_spec`). Nothing that comes from a peer is code.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from trainer.node.checkpoint_sender import CheckpointSender
from trainer.node.console import StatusDisplay
from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec, ensure_dataset
from trainer.node.job import Job
from trainer.node.job_handlers.train import FILES
from trainer.node.outcome import JobFailedError, JobOutcome, read_outcome
from trainer.node.senders import MetricsSender
from trainer.protocol import (
    Checkpoint,
    Message,
    SwarmOrder,
    SwarmSampleOrder,
    WorkerOrder,
    WorkerResult,
    encode_message,
)
from trainer.sandbox import Mount, SandboxProcess, SandboxSpec, get_driver
from trainer.sandbox.safe_files import read_json_object, sanitize_line

VERSIONS_FOLDER = "versions"
STATUS_FILE = "status.json"
STATUS_BYTES = 256_000
UNITS = ("B", "kB", "MB", "GB", "TB")
MAX_NAMES = 8


def coordinate_swarm(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, SwarmOrder)
    refuse_entry(job)
    job.unpack_source()
    dataset, out = ensure_dataset(job, order.dataset), job.workspace.out
    last_step = download_stages(job, order.resume) if order.resume else -1
    arguments = ["--dataset", str(dataset), "--out", str(out), *job.context.network.flags]
    senders = (MetricsSender(job), CheckpointSender(job, last_step))
    process = job.run_process(get_driver("none"), build_spec(job, "trainer.swarm.site_run", order, arguments), senders)
    return read_outcome(process, out, "The coordinator", is_graph=True, files=FILES)


def work_in_swarm(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, WorkerOrder)
    refuse_entry(job)
    job.unpack_source()
    network, slot, out = job.context.network, job.context.slot, job.workspace.out
    arguments = ["--home", str(job.workspace.run), "--out", str(out), *network.flags]
    arguments += ["--device", "cuda" if slot.gpus else "cpu"]
    arguments += ["--behind-nat"] if network.behind_nat else []
    senders = (MetricsSender(job),)
    display = StatusDisplay(
        order.title or f"run {order.run}",
        "Ctrl-C leaves between two steps; nothing is lost",
        partial(format_worker_line, out),
        partial(build_worker_rows, out, time.monotonic()),
        job.log,
        can_draw=slot.count == 1,
    )
    with display:
        spec = build_spec(job, "trainer.swarm.worker_main", order, arguments)
        process = job.run_process(get_driver("none"), spec, senders)
    status = read_worker_status(out)
    if process.poll() != 0:
        raise JobFailedError(process.limit_error or f"The worker's process ended with exit code {process.poll()}.")
    return build_worker_outcome(status, process.seconds)


def sample_swarm(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, SwarmSampleOrder)
    refuse_entry(job)
    job.unpack_source()
    out = job.workspace.out
    spec = build_spec(job, "trainer.swarm.sample_main", order, ["--out", str(out)])
    process = job.run_process(get_driver("none"), spec, [MetricsSender(job)])
    return describe_sampling(process, out)


def describe_sampling(process: SandboxProcess, out: Path) -> JobOutcome:
    try:
        return read_outcome(process, out, "Sampling from the swarm", is_graph=True)
    except JobFailedError as failure:
        if process.limit_error is not None:  # the swarm is slow; this node works
            failure.fault = "order"
        raise


def refuse_entry(job: Job) -> None:
    if job.spec.entry is not None:
        raise JobFailedError("A swarm's machines run only the site's own code, and this job has an entry's code.")


def download_stages(job: Job, checkpoint: Checkpoint) -> int:
    """Put the stages where the coordinator looks for them; return their step."""
    job.log(f"downloading the stages of step {checkpoint.step} to resume from.")
    folder = job.workspace.out / VERSIONS_FOLDER / f"{checkpoint.step:08d}"
    job.download_all((file for file in checkpoint.files if PurePosixPath(file.path).name.startswith("stage-")), folder)
    return checkpoint.step


def build_spec(job: Job, module: str, order: Message, arguments: list[str]) -> SandboxSpec:
    """Return a spec for one of a swarm's processes: with network, the order in a file, and metered limits."""
    file = job.workspace.scratch / "order.json"
    file.touch(mode=0o600)
    file.write_text(encode_message(order))
    spec = build_trusted_spec(job, [*PYTHON_COMMAND, "-m", module, "--order", str(file), *arguments], job.limits)
    # The path of a socket is limited to about 100 characters, so sockets are not in the workspace.
    environment = {**spec.environment, "SWARM_SOCKETS": tempfile.gettempdir()}
    return replace(spec, environment=environment, mounts=[*spec.mounts, Mount(job.workspace.out, writable=True)])


def build_worker_outcome(status: dict[str, Any], seconds: float) -> JobOutcome:
    """Return the outcome from the last status that the process wrote."""
    reason = sanitize_line(status.get("why"), 300)
    if not status.get("stages"):  # the coordinator never admitted it
        raise JobFailedError(reason or "The coordinator could not be reached from this machine.")
    counts = {name: status[name] for name in ("bytes_in", "bytes_out") if isinstance(status.get(name), int)}
    stage = status.get("stage")
    result = WorkerResult(stage=stage if isinstance(stage, int) else None, seconds=seconds, why=reason, **counts)
    return JobOutcome("done", result=result.model_dump())


# --- status of a worker ---


def read_worker_status(out: Path) -> dict[str, Any]:
    """Return what the worker's process writes to its status file each second."""
    return read_json_object(out, STATUS_FILE, STATUS_BYTES) or {}


def format_worker_line(out: Path) -> str:
    status = read_worker_status(out)
    if not status.get("stages"):
        return "Connecting to the coordinator."
    if status["stage"] is None:
        return "Waiting for a stage. Stages are assigned between two steps."
    return f"{format_stage(status)}; {format_speed(status)}; {format_traffic(status)}."


def build_worker_rows(out: Path, started_at: float) -> list[tuple[str, str]]:
    """Return name and value of each row of the panel. `started_at`: by `time.monotonic`."""
    status = read_worker_status(out)
    clock = ("Time", time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - started_at)))
    if not status.get("stages"):
        return [("Stage", "none yet: connecting to the coordinator"), clock]
    if status["stage"] is None:
        return [("Stage", "waiting for one; stages are assigned between two steps"), clock]
    stage, members, own_name = status["stage"], status["members"], status["me"]
    rows = [("Stage", format_stage(status)), ("Speed", format_speed(status)), ("Traffic", format_traffic(status))]
    source = "the coordinator" if stage == 0 else format_peer_names(members[stage - 1], own_name)
    rows += [("Receives from", source)]
    if stage + 1 < status["stages"]:
        rows += [("Sends to", format_peer_names(members[stage + 1], own_name))]
    rows += [("Same stage", format_peer_names(members[stage], own_name) or "only this machine")]
    return [*rows, ("Leaving", "at the end of this step") if status.get("leaving") else clock]


def format_stage(status: dict[str, Any]) -> str:
    stage = f"stage {status['stage'] + 1} of {status['stages']} of {status['arch']}"
    return f"{stage}, step {status['step']} of {status['steps']}"


def format_speed(status: dict[str, Any]) -> str:
    speed = status.get("tokens_per_second")
    return f"{speed:,.0f} tokens/s" if speed else "not measured yet"


def format_traffic(status: dict[str, Any]) -> str:
    return f"{format_bytes(status['bytes_in'])} in, {format_bytes(status['bytes_out'])} out"


def format_bytes(count: float) -> str:
    for unit in UNITS:
        if count < 1000 or unit == UNITS[-1]:
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def format_peer_names(peers: list[str], own_name: str) -> str:
    others = [peer for peer in peers if peer != own_name]
    more = f" and {len(others) - MAX_NAMES} more" if len(others) > MAX_NAMES else ""
    return ", ".join(others[:MAX_NAMES]) + more
