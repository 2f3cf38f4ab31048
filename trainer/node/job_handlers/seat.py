"""A seat in a swarm: one stage of a model, computed for whoever brings a micro-batch, until the run is over.

Other machines of the run are dialled, so it is in no sandbox: what runs is the site's own release with an architecture
of its own, and nothing that comes from a peer is code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.node.job_handlers.swarm import box
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import SeatOrder, WorkerResult
from trainer.sandbox import get_driver
from trainer.sandbox.safe_files import read_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "training with a swarm"
STATUS = "status.json"
STATUS_BYTES = 256_000


def run(job: Job) -> JobOutcome:
    from trainer.node.swarm_status_display import SwarmStatusDisplay

    order = job.spec.order
    assert isinstance(order, SeatOrder)
    if job.spec.entry is not None:
        raise JobFailedError("A swarm's machines run the site's own code only, and this job brings other code.")
    job.unpack()
    words = ["--folder", str(job.workspace.run), "--out", str(job.workspace.out), *job.place.reach.flags]
    words += ["--device", "cuda" if job.place.lane.gpus else "cpu"]
    words += ["--behind-nat"] if job.place.reach.behind_nat else []
    loops = (MetricsSender(job.client, job.lease, job.workspace.out, job.wishes),)
    with SwarmStatusDisplay(order.title or f"run {order.run}", job.workspace.out, job.say, job.place.lane.lanes == 1):
        process = job.run(get_driver("none"), box(job, "trainer.swarm.worker_main", order, words), loops)
    last = read_json_object(job.workspace.out, STATUS, STATUS_BYTES) or {}
    if process.poll() != 0:
        raise JobFailedError(process.limit_error or f"The seat's process ended with exit code {process.poll()}.")
    return outcome(last, process.seconds)


def outcome(last: dict[str, Any], seconds: float) -> JobOutcome:
    """Put what the process said last into words."""
    why = sanitize_line(last.get("why"), 300)
    if not last.get("stages"):  # it has never been welcomed
        raise JobFailedError(why or "The coordinator could not be reached from this machine.")
    facts = {name: last[name] for name in ("bytes_in", "bytes_out") if isinstance(last.get(name), int)}
    stage = last.get("stage")
    seated = WorkerResult(stage=stage if isinstance(stage, int) else None, seconds=seconds, why=why, **facts)
    return JobOutcome("done", result=seated.model_dump())
