"""Smoke test: the site's own `dailytrain smoke`, from the pure release. It traces the entry's code in the sandbox."""

from __future__ import annotations

import json

from pydantic import ValidationError

from trainer.errors import ExitCode
from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec
from trainer.node.job import Job
from trainer.node.outcome import JobFailedError, JobOutcome, explain_failure
from trainer.protocol import GRAPH_FILES, SmokeOrder, SmokeResult
from trainer.sandbox import SandboxProcess, get_driver
from trainer.sandbox.safe_files import parse_json_object, sanitize_line

OUTPUT_BYTES = 2_000_000  # of the summary of a graph, mostly
GRAPH_FOLDER = "graph"  # of the result files
COMPLETED_CODES = (ExitCode.OK, ExitCode.MODEL_ERROR)  # exit codes of a completed smoke test: passed or failed


def run_smoke_test(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, SmokeOrder)
    job.unpack_source()
    job.workspace.config.write_text(json.dumps(order.config))
    output = job.workspace.scratch / "output.json"
    spec = build_trusted_spec(job, build_command(job, order), job.limits)
    process = job.run_process(get_driver("none"), spec, output=output)
    return read_outcome(process, output.read_bytes()[: OUTPUT_BYTES + 1])


def build_command(job: Job, order: SmokeOrder) -> list[str]:
    """Return the command. It prepares its dataset anew in the scratch folder, which takes a second."""
    work = job.workspace
    architecture = sanitize_line(order.config.get("arch")) or "?"
    command = [*PYTHON_COMMAND, "-m", "trainer.cli", "smoke", architecture, "--job", "--json"]
    command += ["--config", str(work.config), "--tokenizer", order.tokenizer]
    command += ["--sandbox", get_sandbox_name(job), "--model-source", str(work.source)]
    command += ["--data", str(work.scratch / "data")]
    command += ["--memory-bytes", str(order.memory_bytes)] if order.memory_bytes else []
    command += ["--peak", str(order.peak)] if order.peak else []
    command += ["--vocabulary-size", str(order.vocabulary_size)] if order.vocabulary_size else []
    command += ["--trace-only"] if order.trace_only else []
    return [*command, "--graph-out", str(work.out / GRAPH_FOLDER)]


def get_sandbox_name(job: Job) -> str:
    """Return the node's sandbox; raise `JobFailedError` for docker, which the command does not know."""
    name = job.context.sandbox.name
    if name == "docker":
        raise JobFailedError("A smoke test needs bubblewrap, and this node uses docker.")
    return name


def read_outcome(process: SandboxProcess, output: bytes) -> JobOutcome:
    """Return the outcome. A failed check of the entry is a result, not a failure of the job."""
    result = parse_json_object(output, OUTPUT_BYTES)
    if process.limit_error is not None or process.poll() not in COMPLETED_CODES or result is None:
        raise explain_failure(process, "The smoke test", is_graph=True)
    try:
        checked = SmokeResult.model_validate(result).model_dump()
    except ValidationError as error:
        raise JobFailedError("The smoke test's result is malformed.") from error
    return JobOutcome("done", result=checked, files=tuple(f"{GRAPH_FOLDER}/{name}" for name in GRAPH_FILES))
