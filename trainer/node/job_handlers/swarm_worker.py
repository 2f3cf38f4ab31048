"""A worker of a swarm: this machine computes one stage of a model for its peers until the run is over.

It connects to other machines, so it runs in no sandbox. The code is the site's own release with a built-in
architecture, and nothing that comes from a peer is code.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from trainer.node.job import Job
from trainer.node.job_handlers.swarm import build_spec, refuse_entry
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import WorkerOrder, WorkerResult
from trainer.sandbox import get_driver
from trainer.sandbox.safe_files import sanitize_line

ACTIVITY = "training with a swarm"


def run(job: Job) -> JobOutcome:
    from trainer.node.status_display import StatusDisplay
    from trainer.node.worker_status import build_worker_rows, format_worker_line, read_worker_status

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
    return build_outcome(status, process.seconds)


def build_outcome(status: dict[str, Any], seconds: float) -> JobOutcome:
    """Return the outcome from the last status that the process wrote."""
    reason = sanitize_line(status.get("why"), 300)
    if not status.get("stages"):  # the coordinator never admitted it
        raise JobFailedError(reason or "The coordinator could not be reached from this machine.")
    counts = {name: status[name] for name in ("bytes_in", "bytes_out") if isinstance(status.get(name), int)}
    stage = status.get("stage")
    result = WorkerResult(stage=stage if isinstance(stage, int) else None, seconds=seconds, why=reason, **counts)
    return JobOutcome("done", result=result.model_dump())
