"""Leading a swarm's run: the coordinator, until the last step is made and the stages are one checkpoint.

It needs the network, so it is in no sandbox: what runs is the site's own release and an architecture of its own, with
no file of an entry's (`trusted`).
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.node.checkpoint_sender import CheckpointSender
from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec, ensure_dataset
from trainer.node.job_handlers.train import FILES, RESULT_BYTES
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import Checkpoint, Message, SwarmOrder, encode_message
from trainer.sandbox import Mount, ResourceLimits, SandboxProcess, SandboxSpec, get_driver
from trainer.sandbox.safe_files import UnsafeFileError, parse_relative_path, read_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "leading a swarm"
VERSIONS = "versions"
MODEL = (2, 3)
"""Exit codes that are the configuration's or the model's own doing."""


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, SwarmOrder)
    if job.spec.entry is not None:
        raise JobFailedError("A swarm's machines run the site's own code only, and this job brings other code.")
    job.unpack()
    data = ensure_dataset(job, order.dataset)
    last = resume(job, order.resume) if order.resume else -1
    words = ["--dataset", str(data), "--out", str(job.workspace.out), *job.place.reach.flags]
    loops = (
        MetricsSender(job.client, job.lease, job.workspace.out, job.wishes),
        CheckpointSender(job.client, job.lease, job.workspace.out, job.wishes, last),
    )
    process = job.run(get_driver("none"), box(job, "trainer.swarm.site_run", order, words), loops)
    return outcome(process, job.workspace.out)


def resume(job: Job, checkpoint: Checkpoint) -> int:
    """Lay the stages where the coordinator looks for them; return their step."""
    job.say(f"fetching the stages of step {checkpoint.step} to go on from.")
    folder = job.workspace.out / VERSIONS / f"{checkpoint.step:08d}"
    try:
        stages = [file for file in checkpoint.files if parse_relative_path(file.path).name.startswith("stage-")]
    except UnsafeFileError as error:
        raise JobFailedError(f"{error} Nothing was run.") from error
    job.fetch_into(stages, folder)
    return checkpoint.step


def box(job: Job, module: str, order: Message, words: list[str]) -> SandboxSpec:
    """A box for one of a swarm's processes: network, the order in a file, limits that are metered."""
    file = job.workspace.scratch / "order.json"
    file.touch(mode=0o600)
    file.write_text(encode_message(order))
    command = [*PYTHON_COMMAND, "-m", module, "--order", str(file), *words]
    made = build_trusted_spec(job, command, ResourceLimits(**job.spec.limits.model_dump()))
    # A socket's path may have about a hundred characters: not in the workspace.
    environment = {**made.environment, "SWARM_SOCKETS": tempfile.gettempdir()}
    return replace(made, environment=environment, mounts=[*made.mounts, Mount(job.workspace.out, writable=True)])


def outcome(process: SandboxProcess, out: Path) -> JobOutcome:
    code = process.poll()
    if process.limit_error is not None:
        return JobOutcome("failed", process.limit_error)
    if code == 0:
        result = read_json_object(out, "result.json", RESULT_BYTES)
        if result is None:
            raise JobFailedError("The coordinator ended without a result.")
        return JobOutcome("done", result=result, files=FILES)
    told = read_json_object(out, "failure.json", RESULT_BYTES) or {}
    if code in MODEL:
        return JobOutcome(
            "failed", sanitize_line(told.get("reason")) or "The run could not be led; its log says why.", "model"
        )
    raise JobFailedError(f"The coordinator ended with exit code {code}; its log says why.")
