"""A smoke run: the site's own `trainer.smoke`, from the pure release. It starts the entry's code in the sandbox."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import SmokeOrder, SmokeResult
from trainer.sandbox import ResourceLimits, get_driver
from trainer.sandbox.safe_files import parse_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "smoke run"
ANSWER_BYTES = 100_000
ANSWERS = (0, 3)
"""Exit codes of a smoke run that has an answer: ready, or not."""


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, SmokeOrder)
    job.unpack()
    job.workspace.config.write_text(json.dumps(order.config))
    answer = job.workspace.scratch / "answer.json"
    limits = ResourceLimits(**job.spec.limits.model_dump())
    box = build_trusted_spec(job, command(job, order), limits)
    process = job.run(get_driver("none"), box, output=answer)
    if process.limit_error is not None:
        raise JobFailedError(f"The smoke run was ended. {process.limit_error}", "model")
    return outcome(process.poll(), answer.read_bytes()[: ANSWER_BYTES + 1])


def command(job: Job, order: SmokeOrder) -> list[str]:
    """The dataset is made anew each time: a second, and nothing of it stays."""
    work = job.workspace
    architecture = sanitize_line(order.config.get("arch")) or "?"
    words = [*PYTHON_COMMAND, "-m", "trainer.cli", "smoke", architecture, "--job", "--json"]
    words += ["--config", str(work.config), "--tokenizer", order.tokenizer]
    words += ["--sandbox", sandbox(job), "--model-source", str(work.source), "--data", str(work.scratch / "data")]
    words += ["--memory-bytes", str(order.memory_bytes)] if order.memory_bytes else []
    return words + (["--peak", str(order.peak)] if order.peak else [])


def sandbox(job: Job) -> str:
    """Return the sandbox: the node's own, as far as a model can be asked in it."""
    name = job.place.sandbox.name
    if name == "docker":
        raise JobFailedError("A smoke run needs bubblewrap: the scorer's door does not lead into a container.")
    return name


def outcome(code: int | None, answer: bytes) -> JobOutcome:
    """Put the exit code and the answer together: what an entry does wrong is an answer, too."""
    found = parse_json_object(answer, ANSWER_BYTES)
    if code not in ANSWERS or found is None:
        raise JobFailedError(f"The smoke run could not work on this node (exit code {code}); the log says why.")
    try:
        return JobOutcome("done", result=SmokeResult.model_validate(found).model_dump())
    except ValidationError as error:
        raise JobFailedError("The smoke run's answer is not what it should be.") from error
