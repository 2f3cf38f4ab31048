"""The node's speed beside a training, measured by the site's release in a sandbox of its own: no entry's code runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from trainer.node.datasets import PYTHON_COMMAND
from trainer.node.outcome import JobInterruptedError
from trainer.node.stop_signal import StopLevel
from trainer.protocol import ProbeReading, ProbeSpec
from trainer.sandbox import Mount, ResourceLimits, SandboxSpec

if TYPE_CHECKING:
    from trainer.node.job import Job, Phase

START_SECONDS = 120.0
"""What a slow machine may take to start it and for the few steps that it makes in any case."""
ANSWER_BYTES = 10_000


def probe_before_training(job: Job, probe: ProbeSpec) -> ProbeReading | None:
    return run_probe(job, probe, "preparing")


def probe_after_training(job: Job, probe: ProbeSpec) -> ProbeReading | None:
    """Measure once more. A sponsor who wants the machine back soon gets it: the training is done all the same."""
    try:
        return run_probe(job, probe, "uploading")
    except JobInterruptedError:
        if job.wishes.stop is not StopLevel.FINISH:
            raise
        return None


def run_probe(job: Job, probe: ProbeSpec, phase: Phase) -> ProbeReading | None:
    """Return what the probe found, None if it did not work here."""
    answer = job.workspace.scratch / f"probe-{phase}.json"
    process = job.run(job.place.sandbox, build_spec(job, probe), phase=phase, output=answer)
    if process.poll() != 0:
        return None
    try:
        job.place.vitals.probe = ProbeReading.model_validate_json(answer.read_bytes()[:ANSWER_BYTES])
    except ValidationError:
        return None
    return job.place.vitals.probe


def build_spec(job: Job, probe: ProbeSpec) -> SandboxSpec:
    release = job.workspace.release
    command = [*PYTHON_COMMAND, "-m", "trainer.accounting.probe", "--json"]
    for name, value in probe.model_dump(exclude_none=True).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = job.place.lane.environment() | {
        "PYTHONPATH": str(release),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    wall_seconds = min(probe.seconds + START_SECONDS, job.spec.limits.wall_seconds)
    limits = ResourceLimits(**job.spec.limits.model_dump() | {"wall_seconds": wall_seconds})
    return SandboxSpec(command, environment, [Mount(release)], release, limits)
