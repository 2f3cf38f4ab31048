"""Training: a traced architecture, or an entry's code in the sandbox, with data, configuration and initial weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from trainer.node.checkpoint_sender import FOLDER_NAME, MANIFEST, MANIFEST_BYTES, CheckpointSender
from trainer.node.datasets import (
    PYTHON_COMMAND,
    build_entry_environment,
    build_python_environment,
    ensure_dataset,
    mount_training_files,
)
from trainer.node.job import Job, Phase
from trainer.node.outcome import JobFailedError, JobInterruptedError, JobOutcome, read_outcome
from trainer.node.senders import METRICS_FILE, MetricsSender
from trainer.node.stop_signal import StopLevel
from trainer.protocol import BaseWeights, Checkpoint, GraphFiles, ProbeReading, ProbeResults, ProbeSpec, TrainOrder
from trainer.protocol.files import OPTIMIZER_FILE, build_checkpoint_path
from trainer.sandbox import Mount, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import read_json_object

FILES = ("run.json",)  # uploaded with the result
PROBE_SECONDS = 120.0  # for the start of a probe on a slow machine and the few steps that always run
PROBE_BYTES = 10_000
TIME_ADVICE = (
    "It goes on from its last checkpoint. If no node is fast enough: a shorter checkpoint_every, a smaller budget, or "
    "a larger wall_seconds in the track's limits."
)


class DeviceSettings(BaseModel):
    """The device settings of a run's configuration."""

    device: str | None = None
    devices: int = Field(default=1, ge=1)


def run_training(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, TrainOrder)
    job.unpack_source()
    dataset, out = ensure_dataset(job, order.dataset), job.workspace.out
    last_step = download_checkpoint(job, order.resume) if order.resume else -1
    config = order.config | choose_devices(order.config, len(job.context.slot.gpus))
    write_config(job, config, download_base_weights(job, order.base), download_graph(job, order.graph))
    before = run_probe(job, order.probe, "preparing") if order.probe else None
    senders = (MetricsSender(job), CheckpointSender(job, last_step, order.upload_seconds))
    spec = build_spec(job, dataset, config["devices"])
    progress = out / METRICS_FILE if order.graph else None  # an entry's Python could write what it likes
    process = job.run_process(job.context.sandbox, spec, senders, progress=progress)
    outcome = describe_training(process, out, is_graph=order.graph is not None)
    if outcome.outcome != "done":
        return outcome
    probe_results = None  # replaces any `probes` that the untrusted training process reported
    if order.probe:
        probe_results = ProbeResults(before=before, after=probe_after_training(job, order.probe)).model_dump()
    return replace(outcome, result={**outcome.result, "probes": probe_results})


def choose_devices(config: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Return `device` and `devices` for a slot with `gpus` GPUs: as many as the configuration requests, else one.

    `device` is `cuda`, so that a GPU that torch does not find ends the job instead of training on the CPU. Raise
    `JobFailedError` for a configuration that is invalid or that requests more GPUs than the slot has.
    """
    try:
        settings = DeviceSettings.model_validate(config)
    except ValidationError as error:
        raise JobFailedError("The run's configuration is invalid.", "order") from error
    if 0 < gpus < settings.devices and settings.device != "cpu":
        raise JobFailedError(f"The run needs {settings.devices} GPUs, and this node has {gpus} for it.")
    is_open = gpus and settings.device in (None, "auto")
    return {"devices": settings.devices, **({"device": "cuda"} if is_open else {})}


def write_config(job: Job, config: dict[str, Any], base_folder: Path | None, graph: Path | None) -> None:
    """Write the run's configuration. Only the order can set the weights to start from and the graph, not the entry."""
    fixed = {"from", "graph", "eager"} | ({"model"} if graph else set())  # a graph has the sizes of the model
    config = {name: value for name, value in config.items() if name not in fixed} | ({} if graph else {"eager": True})
    paths = {"from": base_folder, "graph": graph}
    job.workspace.config.write_text(json.dumps(config | {name: str(path) for name, path in paths.items() if path}))


def download_graph(job: Job, graph: GraphFiles | None) -> Path | None:
    """Download a traced architecture; return its folder."""
    if graph is None:
        return None
    job.download_all(graph.files, job.workspace.graph)
    return job.workspace.graph


def download_base_weights(job: Job, base: BaseWeights | None) -> Path | None:
    """Download the weights that the run starts from into a run folder; return their checkpoint's folder."""
    if base is None:
        return None
    job.log(f"downloading {base.name}, which it starts from.")
    run = job.workspace.base / base.name
    job.download(base.run, run / "run.json")
    folder = run / build_checkpoint_path(base.checkpoint.step)
    job.download_all([file for file in base.checkpoint.files if file.path != OPTIMIZER_FILE], folder)
    return folder


def download_checkpoint(job: Job, checkpoint: Checkpoint) -> int:
    """Put the checkpoint where the trainer looks for it; return its step.

    Raise `JobFailedError` if it cannot be one: the node that uploaded it is at fault, not this one.
    """
    if sum(file.size for file in checkpoint.files) > job.limits.disk_bytes:
        raise build_checkpoint_error(checkpoint, "exceeds the job's disk limit")
    job.log(f"downloading the checkpoint of step {checkpoint.step} to resume from.")
    folder = job.workspace.out / build_checkpoint_path(checkpoint.step)
    job.download_all(checkpoint.files, folder)
    manifest = read_json_object(folder, MANIFEST, MANIFEST_BYTES) or {}
    try:
        declared = Checkpoint.model_validate(manifest)
    except ValidationError as error:
        raise build_checkpoint_error(checkpoint, "has no readable manifest") from error
    files = {file for file in checkpoint.files if file.path != MANIFEST}
    if declared.step != checkpoint.step or set(declared.files) != files or not FOLDER_NAME.fullmatch(folder.name):
        raise build_checkpoint_error(checkpoint, "does not match its manifest")
    return checkpoint.step


def build_checkpoint_error(checkpoint: Checkpoint, problem: str) -> JobFailedError:
    reason = f"The checkpoint of step {checkpoint.step} to resume from {problem}. Nothing was run."
    return JobFailedError(reason, fault="checkpoint")


def build_spec(
    job: Job,
    dataset: Path,
    devices: int,
    module: str = "trainer.train",
    *arguments: str,
    extra_mounts: Sequence[Mount] = (),
) -> SandboxSpec:
    """Return a spec for a module that trains graphs or the entry's code, which sees only `devices` GPUs of the slot.

    `arguments`: additional ones of the module.
    """
    work = job.workspace
    command = [*PYTHON_COMMAND, "-m", module, *arguments]
    command += ["--config", str(work.config), "--dataset", str(dataset), "--out", str(work.out)]
    mounts = [Mount(path) for path in (work.source, work.config, work.base, work.graph)]
    mounts.append(Mount(work.out, writable=True))
    mounts += [*extra_mounts, *mount_training_files(dataset)]
    return SandboxSpec(command, build_entry_environment(job, devices), mounts, work.out, job.limits)


def describe_training(process: SandboxProcess, out: Path, is_graph: bool) -> JobOutcome:
    """Return the outcome. `is_graph`: no code of the entry ran."""
    try:
        return read_outcome(process, out, "The training", is_graph, FILES)
    except JobFailedError as failure:
        advice = f" {TIME_ADVICE}" if process.is_out_of_time else ""
        return JobOutcome("failed", f"{failure}{advice}", failure.fault, files=FILES)


# --- the speed before and after, measured by the site's release in a sandbox without the entry ---


def probe_after_training(job: Job, probe: ProbeSpec) -> ProbeReading | None:
    """Measure again. None if the sponsor is stopping the agent: the training is complete."""
    try:
        return run_probe(job, probe, "uploading")
    except JobInterruptedError:
        if job.stop_signal.level is not StopLevel.FINISH:
            raise
        return None


def run_probe(job: Job, probe: ProbeSpec, phase: Phase) -> ProbeReading | None:
    """Return the measurement; None if the probe failed."""
    output = job.workspace.scratch / f"probe-{phase}.json"
    process = job.run_process(job.context.sandbox, build_probe_spec(job, probe), phase=phase, output=output)
    if process.poll() != 0:
        return None
    try:
        reading = ProbeReading.model_validate_json(output.read_bytes()[:PROBE_BYTES])
    except ValidationError:
        return None
    job.context.gpu_monitor.probe = reading
    return reading


def build_probe_spec(job: Job, probe: ProbeSpec) -> SandboxSpec:
    release = job.workspace.release
    command = [*PYTHON_COMMAND, "-m", "trainer.accounting.probe", "--json"]
    for name, value in probe.model_dump(exclude_none=True).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = build_python_environment(job, release)
    wall_seconds = min(probe.seconds + PROBE_SECONDS, job.limits.wall_seconds)
    limits = replace(job.limits, wall_seconds=wall_seconds)
    return SandboxSpec(command, environment, [Mount(release)], release, limits)
