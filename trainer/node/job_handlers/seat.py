"""A seat in a swarm: this machine computes one stage of a model for its peers until the run is over.

It connects to other machines, so it runs in no sandbox. The code is the site's own release with a built-in
architecture, and nothing that comes from a peer is code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.node.job_handlers.swarm import build_spec, refuse_entry
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import SeatOrder, WorkerResult
from trainer.sandbox import get_driver
from trainer.sandbox.safe_files import read_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

ACTIVITY = "training with a swarm"


def run(job: Job) -> JobOutcome:
    from trainer.node.swarm_status_display import STATUS_BYTES, STATUS_FILE, SwarmStatusDisplay

    order = job.spec.order
    assert isinstance(order, SeatOrder)
    refuse_entry(job)
    job.unpack_source()
    network, slot, out = job.context.network, job.context.slot, job.workspace.out
    words = ["--folder", str(job.workspace.run), "--out", str(out), *network.command_line]
    words += ["--device", "cuda" if slot.gpus else "cpu"]
    words += ["--behind-nat"] if network.behind_nat else []
    senders = (MetricsSender(job),)
    title = order.title or f"run {order.run}"
    with SwarmStatusDisplay(title, out, job.log, can_draw=slot.count == 1):
        spec = build_spec(job, "trainer.swarm.worker_main", order, words)
        process = job.run_process(get_driver("none"), spec, senders)
    status = read_json_object(out, STATUS_FILE, STATUS_BYTES) or {}
    if process.poll() != 0:
        raise JobFailedError(process.limit_error or f"The seat's process ended with exit code {process.poll()}.")
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
