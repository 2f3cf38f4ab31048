"""Self-test: a step of a tiny model and one scored row, by the commands, drivers and release of all other jobs.

What every job of this node would fail at fails here: a package that the sandbox does not see, a GPU that does not
compute, a full disk.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec
from trainer.node.job import Job
from trainer.node.job_handlers.score import read_output
from trainer.node.job_handlers.train import build_spec, choose_devices, write_config
from trainer.node.outcome import RESULT_BYTES, JobFailedError, JobOutcome
from trainer.protocol import SelfTestOrder, SelfTestResult
from trainer.sandbox import SandboxProcess, get_driver
from trainer.sandbox.safe_files import read_json_object, sanitize_line

CONFIG = {
    "preset": "tiny", "budget": "1steps", "checkpoint-every": "1steps",
    "train": {"compile": False, "dev-tokens": 512, "evaluations": 1, "sample-tokens": 0},
}  # fmt: skip
TEXT = "The train leaves every night, and its last stop is not known. "
LINES = 2000
SCORED_TOKENS = 1  # of the sample: at least one row
TAIL_LENGTH = 4096
COMMAND_NAME = re.compile(r"^dailytrain [a-z]+: ")


def run_self_test(job: Job) -> JobOutcome:
    assert isinstance(job.spec.order, SelfTestOrder)
    job.unpack_source()
    dataset = prepare_text(job)
    devices = choose_devices({}, len(job.context.slot.gpus))
    write_config(job, {**CONFIG, **devices}, None, None)
    trained = job.run_process(job.context.sandbox, build_spec(job, dataset, devices["devices"]))
    check(job, trained, "Training one step")
    scored, result = score_row(job, dataset)
    check(job, scored, "Scoring one row")
    measured = read_json_object(job.workspace.out, "result.json", RESULT_BYTES) or {}
    try:
        found = SelfTestResult.model_validate(
            {
                "sandbox": job.context.sandbox.name,
                "device": devices.get("device", "cpu"),
                "gpus": len(job.context.slot.gpus),
                "loss": measured.get("final_loss"),
                "bits_per_byte": result.get("bits_per_byte"),
                "train_seconds": trained.seconds,
                "score_seconds": scored.seconds,
            }
        )
    except ValidationError as error:
        raise JobFailedError("The self-test measured nothing.") from error
    job.log(
        f"one step on {found.device.upper()} in {found.train_seconds:.1f} s, in the sandbox {found.sandbox};"
        f" one row scored in {found.score_seconds:.1f} s."
    )
    return JobOutcome("done", result=found.model_dump())


def prepare_text(job: Job) -> Path:
    """Return a small dataset, made on this machine: downloads are no part of the test."""
    text, folder = job.workspace.scratch / "text", job.workspace.scratch / "data"
    text.mkdir()
    for number in range(LINES // 100):
        lines = (f"{number * 100 + line}. {TEXT}" for line in range(100))
        (text / f"{number}.txt").write_text("\n".join(lines))
    command = [*PYTHON_COMMAND, "-m", "trainer.cli.prepare", "--corpus", f"files:{text}/*.txt"]
    command += ["--tokenizer", "bpe:512", "--out", str(folder), "--json", "--quiet"]
    spec = build_trusted_spec(job, command, job.limits)
    output = job.workspace.scratch / "prepared.json"
    process = job.run_process(get_driver("none"), spec, phase="preparing", output=output)
    check(job, process, "Preparing a small text")
    return folder


def score_row(job: Job, dataset: Path) -> tuple[SandboxProcess, dict[str, Any]]:
    output = job.workspace.scratch / "output.json"
    command = [*PYTHON_COMMAND, "-m", "trainer.cli", "score", str(job.workspace.out), "--dataset", str(dataset)]
    command += ["--json", "--device", "cuda" if job.context.slot.gpus else "auto"]
    command += ["--limit-tokens", str(SCORED_TOKENS)]
    process = job.run_process(get_driver("none"), build_trusted_spec(job, command, job.limits), output=output)
    return process, read_output(output) or {}


def check(job: Job, process: SandboxProcess, activity: str) -> None:
    """Raise `JobFailedError`, with the last line that the process wrote, unless it succeeded."""
    code = process.poll()
    if process.limit_error is not None:
        raise JobFailedError(f"{activity}: {process.limit_error}")
    if code != 0:
        raise JobFailedError(f"{activity}: {read_last_line(job) or f'exit code {code}'}")


def read_last_line(job: Job) -> str:
    """Return the end of what the processes wrote, without the name of the command: an error, or the exception."""
    lines = job.workspace.output.read_text(errors="replace")[-TAIL_LENGTH:].splitlines()
    last = next((line for text in reversed(lines) if (line := sanitize_line(text))), "")
    return COMMAND_NAME.sub("", last)
