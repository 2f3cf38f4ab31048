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
from trainer.node.outcome import JobOutcome, explain_failure
from trainer.protocol import SwarmSampleOrder
from trainer.sandbox import SandboxProcess, get_driver
from trainer.sandbox.safe_files import read_json_object

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
    if process.limit_error is None and process.poll() == ExitCode.OK:
        return JobOutcome("done", result=read_json_object(out, "result.json", RESULT_BYTES) or {})
    report = read_json_object(out, "failure.json", RESULT_BYTES)
    failure = explain_failure(process, "Sampling from the swarm", is_graph=True, report=report)
    if process.limit_error is not None:  # the swarm is slow; this node works
        failure.fault = "order"
    raise failure
