"""The node's speed before and after a training, measured by the site's release in a sandbox without the entry."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from trainer.node.datasets import PYTHON_COMMAND, build_python_environment
from trainer.node.job import Job, Phase
from trainer.node.outcome import JobInterruptedError
from trainer.node.stop_signal import StopLevel
from trainer.protocol import ProbeReading, ProbeSpec
from trainer.sandbox import Mount, SandboxSpec

START_SECONDS = 120.0  # for the start on a slow machine and the few steps that always run
OUTPUT_BYTES = 10_000


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
    process = job.run_process(job.context.sandbox, build_spec(job, probe), phase=phase, output=output)
    if process.poll() != 0:
        return None
    try:
        reading = ProbeReading.model_validate_json(output.read_bytes()[:OUTPUT_BYTES])
    except ValidationError:
        return None
    job.context.gpu_monitor.probe = reading
    return reading


def build_spec(job: Job, probe: ProbeSpec) -> SandboxSpec:
    release = job.workspace.release
    command = [*PYTHON_COMMAND, "-m", "trainer.accounting.probe", "--json"]
    for name, value in probe.model_dump(exclude_none=True).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = build_python_environment(job, release)
    wall_seconds = min(probe.seconds + START_SECONDS, job.limits.wall_seconds)
    limits = replace(job.limits, wall_seconds=wall_seconds)
    return SandboxSpec(command, environment, [Mount(release)], release, limits)
