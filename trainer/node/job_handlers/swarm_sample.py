"""Text from a running swarm for a visitor: its coordinator continues a prompt; the text is sent as it grows.

It connects to another machine, so it runs in no sandbox. The code is the site's own release, and what comes back is
text.
"""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ExitCode
from trainer.node.job import Job
from trainer.node.job_handlers.generate import RESULT_BYTES
from trainer.node.job_handlers.swarm import build_spec, refuse_entry
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import SwarmSampleOrder
from trainer.sandbox import SandboxProcess, get_driver
from trainer.sandbox.safe_files import read_json_object, sanitize_line

ACTIVITY = "writing for a visitor"


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, SwarmSampleOrder)
    refuse_entry(job)
    job.unpack_source()
    out = job.workspace.out
    spec = build_spec(job, "trainer.swarm.sample_main", order, ["--out", str(out)])
    process = job.run_process(get_driver("none"), spec, [MetricsSender(job)])
    return read_outcome(process, out)


def read_outcome(process: SandboxProcess, out: Path) -> JobOutcome:
    code = process.poll()
    if process.limit_error is not None:
        return JobOutcome("failed", f"Sampling was ended while it ran. {process.limit_error}", "model")
    if code == ExitCode.OK:
        return JobOutcome("done", result=read_json_object(out, "result.json", RESULT_BYTES) or {})
    failure = read_json_object(out, "failure.json", RESULT_BYTES) or {}
    reason = sanitize_line(failure.get("reason"), 300) or "Sampling from the swarm failed; the log says why."
    if code == ExitCode.USER_ERROR:
        return JobOutcome("failed", reason, "model")  # the swarm gives no text; the node works
    raise JobFailedError(reason)
