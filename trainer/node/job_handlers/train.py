"""Training: the entry's code, in the sandbox, on what was prepared for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.node import probes
from trainer.node.checkpoint_sender import CHECKPOINTS_FOLDER, CheckpointSender
from trainer.node.datasets import PYTHON_COMMAND, ensure_dataset
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import BaseWeights, Checkpoint, ProbeResults, TrainOrder
from trainer.sandbox import Mount, ResourceLimits, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import read_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "training"
FILES = ("run.json",)
"""Stay with the job."""
OPTIMIZER = "optimizer.pt"
"""Of a checkpoint: nothing that a scorer or another run needs, and the larger part."""
RESULT_BYTES = 256_000
VISIBLE = ("manifest.json", "tokenizer.json", "train", "dev")
"""Of the dataset. The test split is not there."""
CRASHES = {
    132: "an illegal instruction",
    134: "an abort",
    135: "a bus error",
    136: "an arithmetic error",
    139: "a segmentation fault",
}
DEFAULTS = {
    1: "The training could not run on this node.",
    2: "The run's configuration was not accepted; the log says why.",
    3: "The model failed; the log says how.",
}
MODEL = (2, 3)
"""Exit codes that are the entry's own doing."""


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, TrainOrder)
    job.unpack()
    data = ensure_dataset(job, order.dataset)
    last = resume(job, order.resume) if order.resume else -1
    start = lay_out_base(job, order.base)
    configure(job, order.config | devices(order.config, len(job.place.lane.gpus)), start)
    before = probes.probe_before_training(job, order.probe) if order.probe else None
    loops = (
        MetricsSender(job.client, job.lease, job.workspace.out, job.wishes),
        CheckpointSender(job.client, job.lease, job.workspace.out, job.wishes, last),
    )
    process = job.run(job.place.sandbox, box(job, data), loops)
    ended = outcome(process, job.workspace.out)
    if ended.outcome != "done":
        return ended
    # Whatever the training process says about its own node's speed is put aside.
    found = (
        ProbeResults(before=before, after=probes.probe_after_training(job, order.probe)).model_dump()
        if order.probe
        else None
    )
    return replace(ended, result={**ended.result, "probes": found})


def devices(config: dict[str, Any], gpus: int) -> dict[str, int]:
    """Return what a configuration has to say of devices on a lane with so many GPUs: all of them, where it leaves that
    open and they can share its steps evenly. Raise `Failed` if it asks for more than there are.
    """
    asked = config.get("devices")
    if isinstance(asked, int) and 0 < gpus < asked and config.get("device") != "cpu":
        raise JobFailedError(f"The run asks for {asked} GPUs, and {gpus} work for it on this node.")
    if asked is not None or gpus < 2:
        return {}
    batch = config.get("train", {}).get("batch") or config.get("train.batch")
    # A batch that the trainer computes is a power of two.
    fitting = [count for count in range(1, gpus + 1) if (batch or 1 << 20) % count == 0]
    return {"devices": max(fitting)}


def configure(job: Job, config: dict[str, Any], start: Path | None) -> None:
    """Write the run's configuration. What it starts from is the order's word, never an entry's."""
    own = {name: value for name, value in config.items() if name != "from"}
    job.workspace.config.write_text(json.dumps(own | ({"from": str(start)} if start else {})))


def lay_out_base(job: Job, base: BaseWeights | None) -> Path | None:
    """Fetch the weights that the run starts from; return the folder of their checkpoint, in one of their run."""
    if base is None:
        return None
    job.say(f"fetching {base.name}, which it starts from.")
    run = job.workspace.base / base.name
    job.fetch(base.run, run / "run.json")
    folder = run / CHECKPOINTS_FOLDER / f"step-{base.checkpoint.step:08d}"
    job.fetch_into([file for file in base.checkpoint.files if file.path != OPTIMIZER], folder)
    return folder


def resume(job: Job, checkpoint: Checkpoint) -> int:
    """Lay the checkpoint where the trainer looks for it; return its step."""
    if sum(file.size for file in checkpoint.files) > job.spec.limits.disk_bytes:
        raise JobFailedError("The checkpoint to go on from is larger than the disk the job may use. Nothing was run.")
    job.say(f"fetching the checkpoint of step {checkpoint.step} to go on from.")
    job.fetch_into(checkpoint.files, job.workspace.out / CHECKPOINTS_FOLDER / f"step-{checkpoint.step:08d}")
    return checkpoint.step


def box(job: Job, data: Path, module: str = "trainer.train", *words: str, beside: Sequence[Mount] = ()) -> SandboxSpec:
    """A box for code with the entry in it. `words`: flags of the module; `beside`: what else it may see."""
    work = job.workspace
    command = [*PYTHON_COMMAND, "-m", module, *words]
    command += ["--config", str(work.config), "--dataset", str(data), "--out", str(work.out)]
    environment = job.place.lane.environment() | {
        "PYTHONPATH": str(work.source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }
    mounts = [Mount(work.source), Mount(work.config), Mount(work.base), Mount(work.out, writable=True), *beside]
    mounts += [Mount(data / name) for name in VISIBLE if (data / name).exists()]
    return SandboxSpec(command, environment, mounts, work.out, ResourceLimits(**job.spec.limits.model_dump()))


def outcome(process: SandboxProcess, out: Path) -> JobOutcome:
    code = process.poll()
    if process.limit_error is not None:
        return failed(process.limit_error, model=True)
    if code == 0:
        result = read_json_object(out, "result.json", RESULT_BYTES)
        if result is None:
            return failed("The training ended without a result.", model=True)
        return JobOutcome("done", result=result, files=FILES)
    if code in CRASHES:
        return failed(f"The training process crashed with {CRASHES[code]}.", model=True)
    told: dict[str, Any] = read_json_object(out, "failure.json", RESULT_BYTES) or {}
    sentence = sanitize_line(told.get("reason"))
    if code in DEFAULTS:
        model = told.get("cause") == "model" if told.get("cause") in ("model", "infrastructure") else code in MODEL
        return failed(sentence or DEFAULTS[code], model)
    if code is not None and code > 128:
        return failed(f"The training process was killed from outside (signal {code - 128}).", model=False)
    return failed(f"The training ended with exit code {code}, which means nothing to us.", model=True)


def failed(reason: str, model: bool) -> JobOutcome:
    return JobOutcome("failed", reason, "model" if model else "infrastructure", files=FILES)
