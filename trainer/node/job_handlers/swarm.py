"""Coordination of a swarm's run, until the last step is done and the stages are merged into one checkpoint.

It needs the network, so it runs in no sandbox: the code is the site's own release with a built-in architecture, without
any file of an entry (`build_trusted_spec`).
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trainer.errors import ExitCode
from trainer.node.checkpoint_sender import CheckpointSender
from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec, ensure_dataset
from trainer.node.job import Job
from trainer.node.job_handlers.train import FILES, RESULT_BYTES
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome, explain_failure
from trainer.protocol import Checkpoint, Message, SwarmOrder, encode_message
from trainer.sandbox import Mount, SandboxProcess, SandboxSpec, get_driver
from trainer.sandbox.safe_files import read_json_object

ACTIVITY = "leading a swarm"
VERSIONS_FOLDER = "versions"


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, SwarmOrder)
    refuse_entry(job)
    job.unpack_source()
    dataset, out = ensure_dataset(job, order.dataset), job.workspace.out
    last_step = download_stages(job, order.resume) if order.resume else -1
    arguments = ["--dataset", str(dataset), "--out", str(out), *job.context.network.flags]
    senders = (MetricsSender(job), CheckpointSender(job, last_step))
    process = job.run_process(get_driver("none"), build_spec(job, "trainer.swarm.site_run", order, arguments), senders)
    return read_outcome(process, out)


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


def read_outcome(process: SandboxProcess, out: Path) -> JobOutcome:
    if process.limit_error is None and process.poll() == ExitCode.OK:
        result = read_json_object(out, "result.json", RESULT_BYTES)
        if result is not None:
            return JobOutcome("done", result=result, files=FILES)
    raise explain_failure(process, "The coordinator", True, read_json_object(out, "failure.json", RESULT_BYTES))
