"""`dailytrain smoke ARCH [--json]`: find an architecture's mistakes on the CPU, before it trains on a GPU."""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import trainer
from trainer.accounting.cores import WAIT_VARIABLES
from trainer.cli import Parser, parse_positive_integer
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.errors import ExitCode, ModelError, UserError, print_error
from trainer.sandbox import Mount, ResourceLimits, SandboxDriver, SandboxError, SandboxSpec, get_driver
from trainer.sandbox.safe_files import read_json_object
from trainer.smoke.findings import (
    CheckName,
    SmokeCheck,
    SmokeLimits,
    check_causality,
    check_learning,
    check_size,
    check_start,
    describe_failure,
    explain_kill,
    list_hints,
    lower,
)
from trainer.smoke.report import TraceReport
from trainer.smoke.small_model import TrainingResult, open_small_model
from trainer.smoke.terminal import print_conclusion, show_checks
from trainer.smoke.traced_files import FullSize, measure_full_size, read_sandbox_graphs

COMMAND = "dailytrain smoke"
CORPUS, TOKENIZER, LIMIT_BYTES = "python-docs", "bpe:512", 2**20
"""Corpus, tokenizer and size of the small dataset: text that is part of the package."""
STEPS = 200
SECONDS = 120.0
LIMITS = ResourceLimits(wall_seconds=900, memory_bytes=3 * 10**9, disk_bytes=500 * 10**6, processes=48)
"""Limits of the tracing sandbox."""
TRACING_PARTS = (
    *("__init__.py", "errors.py", "text_files.py", "accounting", "checkpoint", "config", "graph", "models", "ops"),
    *("optim", "protocol", "smoke"),
)
"""What tracing imports of the trainer. The sandbox has no other part: no corpus and no code that reads data."""
HIDDEN = (Path("/usr/share"), Path("/usr/local/share"), Path(pydoc_data.__file__).parent)  # text that nothing needs
MAX_REPORT_BYTES = 100_000
DEFAULT_SIZE = ("--preset", "daily-h100")  # the full size that is counted by default
PASSED = "It imports, traces, fits, learns and sees no later token."
TRACED = "It imports, traces and fits."

PrintCheck = Callable[[SmokeCheck], None]


class SmokeTestError(Exception):
    """The smoke test failed on this machine, not because of the architecture."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the checks; return 0 ready, 1 infrastructure, 3 not ready. Raise `UserError` for bad input."""
    options, flags = parse_arguments(argv)
    try:
        with show_checks(options) as print_check:
            record = run_smoke_test(options, flags, print_check)
    except (SandboxError, SmokeTestError) as error:
        return print_error(COMMAND, error, ExitCode.INFRASTRUCTURE)
    if options.json:
        print(json.dumps(record))  # noqa: T201 (the command's output)
    else:
        print_conclusion(options.arch, record)
    return ExitCode.OK if record["passed"] else ExitCode.MODEL_ERROR


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return our own options, and the flags of `dailytrain train`."""
    parser = Parser(
        prog=COMMAND,
        description="Find most mistakes of an architecture on the CPU: does it import, trace as graphs, fit, learn, "
        "and see no later token?",
        epilog="Further options are those of dailytrain train: the size that is counted (--preset, --model.depth, "
        "--config FILE; default: daily-h100).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("arch", metavar="ARCH", help="a name from `dailytrain arch list`")
    add("--json", action="store_true", help="print JSON")
    add("--sandbox", default="auto", help="auto, bubblewrap or none (auto: bubblewrap where it works)")
    add("--steps", type=parse_positive_integer, default=STEPS, help=f"optimizer steps of the small model ({STEPS})")
    add("--seconds", type=float, default=SECONDS, help=argparse.SUPPRESS)  # CPU time of the small model
    add("--config", type=Path, help="TOML or JSON file, as for dailytrain train: the size that is counted")
    add("--memory-bytes", type=float, help="memory of the target machine")
    add("--peak", type=float, help="FLOP/s of the target machine")
    add("--vocabulary-size", type=parse_positive_integer, metavar="N", help="of the full size (as the tokenizer's)")
    add("--graph-out", type=Path, metavar="DIR", help="write the graphs of the full size to this folder")
    add("--trace-only", action="store_true", help="train no small model")
    add("--model-source", type=Path, help="a folder with a trainer/ package that has the model's code")
    add("--data", type=Path, help=argparse.SUPPRESS)
    add("--job", action="store_true", help="started by a node: prints no checks, the log goes to stderr")
    options, flags = parser.parse_known_args(argv)
    if options.sandbox not in ("auto", "bubblewrap", "none") or (options.job and options.sandbox == "auto"):
        raise UserError(f"the sandboxes are auto, bubblewrap and none, not {options.sandbox}")
    return options, flags if flags or options.config else list(DEFAULT_SIZE)


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass
class Findings:
    """The findings of a smoke test so far."""

    report: TraceReport
    checks: list[SmokeCheck] = field(default_factory=list)
    full_size: FullSize | None = None
    training: TrainingResult | None = None

    @property
    def failed(self) -> SmokeCheck | None:
        return next((check for check in self.checks if not check.passed), None)


def run_smoke_test(options: argparse.Namespace, flags: Sequence[str], print_check: PrintCheck) -> dict[str, Any]:
    """Return the record that `--json` prints."""
    started = time.monotonic()
    sandbox = select_sandbox(options.sandbox)
    with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
        out, private = Path(folder).resolve() / "out", Path(folder).resolve() / "private"
        out.mkdir()
        dataset = prepare_dataset(CORPUS, TOKENIZER, options.data, LIMIT_BYTES)
        with open_log(options) as output:
            report, trace_failure = trace_in_sandbox(
                options, flags, sandbox, dataset.tokenizer.vocabulary_size, out, output
            )
        findings = Findings(report)
        for check in iterate_checks(options, findings, trace_failure, dataset, out, private):
            findings.checks.append(check)
            print_check(check)
            if not check.passed:
                break
    return build_record(findings, dataset.tokenizer.vocabulary_size, sandbox.name, time.monotonic() - started)


def iterate_checks(
    options: argparse.Namespace,
    findings: Findings,
    trace_failure: SmokeCheck | None,
    dataset: Dataset,
    out: Path,
    private: Path,
) -> Generator[SmokeCheck]:
    """Yield the checks, the last one failed or not, and store measurements in `findings`.

    `out`: what the tracing sandbox wrote; `private`: a folder that it cannot access.
    """
    limits = SmokeLimits(options.steps, options.memory_bytes, options.peak)
    name: CheckName = "starts"
    try:
        with ExitStack() as stack:
            if trace_failure is not None and trace_failure.name == "starts":
                yield trace_failure
                return
            small = None
            if not options.trace_only:
                traced = read_sandbox_graphs(out, "small").traced
                small = stack.enter_context(open_small_model(traced, dataset, private, options.steps))
            yield check_start(small and small.parameters)
            name = "fits"
            if trace_failure is not None:
                yield trace_failure
                return
            graphs = read_sandbox_graphs(out, "graph")
            findings.full_size = measure_full_size(graphs)
            if options.graph_out:
                graphs.traced.write(options.graph_out)
            yield check_size(findings.report, findings.full_size, limits)
            if small is None:
                return
            name = "learns"
            findings.training = small.train(options.seconds)
            yield check_learning(findings.training, limits)
            name = "causal"
            yield check_causality(small.measure_look_ahead())
    except ModelError as error:
        yield SmokeCheck(name, False, f"{str(error).rstrip('.')}.")


def select_sandbox(name: str) -> SandboxDriver:
    """Return the driver; raise `SandboxError` if it does not work here."""
    chosen = get_driver("bubblewrap" if name == "auto" else name)
    reason = chosen.find_problem()
    if reason and name != "auto":
        raise SandboxError(reason)
    return get_driver("none") if reason else chosen


@contextmanager
def open_log(options: argparse.Namespace) -> Iterator[IO[bytes]]:
    """Yield the file for the architecture's output: standard error of a job, else /dev/null."""
    if options.job:
        yield sys.stderr.buffer
        return
    with Path(os.devnull).open("wb") as devnull:
        yield devnull


def trace_in_sandbox(
    options: argparse.Namespace,
    flags: Sequence[str],
    sandbox: SandboxDriver,
    small_vocabulary_size: int,
    out: Path,
    output: IO[bytes],
) -> tuple[TraceReport, SmokeCheck | None]:
    """Trace the architecture in the sandbox; return its report and the failed check, if any."""
    spec = build_sandbox_spec(options, flags, small_vocabulary_size, out)
    process = sandbox.start(spec, stdout=output, stderr=output)
    try:
        process.wait()
    finally:
        code = process.kill()
    report = TraceReport.model_validate(read_json_object(out, "smoke.json", MAX_REPORT_BYTES) or {})
    if report.failure:
        raise_other_faults(options, report, code)
        return report, describe_failure(report)
    if report.stage == "done" and code == ExitCode.OK:
        return report, None
    killed = explain_kill(report.stage, process.limit_error, code)
    if killed is None:
        raise SmokeTestError(f"the smoke test failed on this machine (exit code {code}): {get_reason(report)}")
    return report, killed


def raise_other_faults(options: argparse.Namespace, report: TraceReport, code: int | None) -> None:
    """Raise `SmokeTestError` for a failure of this machine, and `UserError` for one of the command line.

    A job's command line belongs to its entry, so its errors are findings.
    """
    if code == ExitCode.INFRASTRUCTURE:
        raise SmokeTestError(f"the smoke test failed on this machine: {get_reason(report)}")
    if code == ExitCode.USER_ERROR and not options.job:
        raise UserError(lower(get_reason(report)))


def get_reason(report: TraceReport) -> str:
    return report.failure.reason if report.failure else "it reported nothing"


def build_sandbox_spec(
    options: argparse.Namespace, flags: Sequence[str], small_vocabulary_size: int, out: Path
) -> SandboxSpec:
    source = options.model_source or Path(trainer.__file__).resolve().parent.parent
    root = source.resolve()
    command = [sys.executable, "-s", "-P", "-m", "trainer.smoke.child", "--arch", options.arch, "--out", str(out)]
    command += ["--small-vocabulary-size", str(small_vocabulary_size), *flags]
    command += ["--vocabulary-size", str(options.vocabulary_size)] if options.vocabulary_size else []
    command += ["--trace-only"] if options.trace_only else []
    mounts = [Mount(path) for name in TRACING_PARTS if (path := root / "trainer" / name).exists()]
    mounts.append(Mount(out, writable=True))
    if options.config:
        file = options.config.resolve()
        if not file.is_file():
            raise UserError(f"there is no file {options.config}")
        command += ["--config", str(file)]
        mounts.append(Mount(file))
    environment = {
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # GPUs are not used
    }
    environment |= {name: os.environ[name] for name in WAIT_VARIABLES if name in os.environ}
    installed = Path(trainer.__file__).resolve().parent  # visible among the interpreter's packages
    hidden = [path for path in (*HIDDEN, installed) if path.is_dir()]
    return SandboxSpec(command, environment, mounts, out, LIMITS, hidden)


def build_record(findings: Findings, vocabulary_size: int, sandbox: str, seconds: float) -> dict[str, Any]:
    """Return what `protocol.SmokeResult` has, as the site shows it."""
    report, size, training, failed = findings.report, findings.full_size, findings.training, findings.failed
    names = [check.name for check in findings.checks]
    return {
        "passed": failed is None,
        "sentence": failed.text if failed else PASSED if "causal" in names else TRACED,
        "checks": [{"name": check.name, "passed": check.passed, "text": check.text} for check in findings.checks],
        "file": failed.file if failed else "",
        "line": failed.line if failed else 0,
        "code": failed.code if failed else "",
        "graph": size and size.summary,
        "hints": list_hints(report, training, vocabulary_size),
        "parameters": size and size.summary["parameters"],
        "parameters_embedding": size and size.parameters_embedding,
        "flops_per_token": size and size.summary["flops_per_token"],
        "state_bytes": size and size.state_bytes,
        **report.model_dump(include={"depth", "sequence_length", "tokens_per_step"}),
        "steps": training and training.steps,
        "train_seconds": training and training.train_seconds,
        "tokens_per_second": training and training.tokens_per_second,
        "memory_bytes": training and training.memory_bytes,
        "first_loss": training and training.losses[0],
        "last_loss": training and training.losses[-1],
        "sandbox": sandbox,
        "seconds": round(seconds, 1),
    }
