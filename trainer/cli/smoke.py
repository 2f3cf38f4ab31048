"""`dailytrain smoke ARCH [--json]`: find an architecture's mistakes on the CPU, before it trains on a GPU."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

import trainer
from trainer.cli.parser import Parser, parse_positive_integer
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.errors import ExitCode, UserError, print_error
from trainer.sandbox import Mount, ResourceLimits, SandboxDriver, SandboxError, SandboxSpec, get_driver
from trainer.sandbox.safe_files import UnsafeFileError, open_file, read_json_object
from trainer.smoke import findings
from trainer.smoke.causality import check_causality
from trainer.smoke.findings import SmokeCheck, SmokeLimits
from trainer.smoke.report import DevLine, Measurements, ParameterCounts, SmokeReport
from trainer.smoke.terminal import print_conclusion, show_checks

COMMAND = "dailytrain smoke"
CORPUS, TOKENIZER, VOCABULARY, LIMIT_BYTES = "python-library", "bpe:512", 512, 2**20
"""Of the small dataset: text that comes with every Python."""
DATASET_FILES = ("manifest.json", "tokenizer.json", "train", "dev")
STEPS = 200
SECONDS = 120.0
LIMITS = ResourceLimits(wall_seconds=900, memory_bytes=3 * 10**9, disk_bytes=500 * 10**6, processes=48)
"""Of the sandboxed process."""
MAX_REPORT_BYTES = 100_000
POLL_SECONDS = 0.1
EXIT_SECONDS = 10.0  # from the last report to the end of the process
DEFAULT_SIZE = ("--preset", "daily-h100")  # the full size that is counted by default
COMMAND_LINE_STAGES = ("imports", "sizes")  # stages in which a user error comes from the command line

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
        description="Find most mistakes of an architecture in a minute, on the CPU: does it import, answer in the "
        "right shape, fit, learn, and see no later token?",
        epilog="Further options are those of dailytrain train: the size that is counted (--preset, --model.depth, "
        "--config FILE; default: daily-h100).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("arch", metavar="ARCH", help="a name from `dailytrain arch list`")
    add("--json", action="store_true", help="print JSON")
    add("--sandbox", default="auto", help="auto, bubblewrap or none (auto: bubblewrap where it works)")
    add("--steps", type=parse_positive_integer, default=STEPS, help=f"optimizer steps of the small model ({STEPS})")
    add("--seconds", type=float, default=SECONDS, help=argparse.SUPPRESS)
    add("--config", type=Path, help="TOML or JSON file, as for dailytrain train: the size that is counted")
    add("--memory-bytes", type=float, help="memory of the target machine")
    add("--peak", type=float, help="FLOP/s of the target machine")
    add("--model-source", type=Path, help="a folder with a trainer/ package that has the model's code")
    add("--data", type=Path, help=argparse.SUPPRESS)
    add("--job", action="store_true", help="started by a node: prints no checks, the log goes to stderr")
    options, flags = parser.parse_known_args(argv)
    if options.sandbox not in ("auto", "bubblewrap", "none") or (options.job and options.sandbox == "auto"):
        raise UserError(f"the sandboxes are auto, bubblewrap and none, not {options.sandbox}")
    return options, flags if flags or options.config else list(DEFAULT_SIZE)


# --- the run ----------------------------------------------------------------------------------------------------------


def run_smoke_test(options: argparse.Namespace, flags: Sequence[str], print_check: PrintCheck) -> dict[str, Any]:
    """Return the record that `--json` prints."""
    started = time.monotonic()
    sandbox = select_sandbox(options.sandbox)
    limits = SmokeLimits(options.arch, options.steps, options.seconds, options.memory_bytes, options.peak)
    with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
        root = Path(folder).resolve()
        out, private = root / "out", root / "run"
        out.mkdir()
        private.mkdir()
        dataset = prepare_dataset(CORPUS, TOKENIZER, options.data, LIMIT_BYTES)
        with open_log(options) as output:
            report, checks = run_child(options, flags, limits, sandbox, dataset, out, output, print_check)
            if checks[-1].passed:
                checks.append(check_causality(out, private, dataset))
                print_check(checks[-1])
        return build_record(report, checks, read_losses(out), sandbox.name, time.monotonic() - started)


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


def run_child(
    options: argparse.Namespace,
    flags: Sequence[str],
    limits: SmokeLimits,
    sandbox: SandboxDriver,
    dataset: Dataset,
    out: Path,
    output: IO[bytes],
    print_check: PrintCheck,
) -> tuple[SmokeReport, list[SmokeCheck]]:
    """Run the sandboxed process; return its report and the checks, printing each as it is decided."""
    process = sandbox.start(build_child_spec(options, flags, dataset, out), stdout=output, stderr=output)
    checks: list[SmokeCheck] = []
    try:
        while True:
            code = process.wait(POLL_SECONDS)
            report = SmokeReport.model_validate(read_json_object(out, "smoke.json", MAX_REPORT_BYTES) or {})
            for check in findings.decide_checks(report, read_losses(out), limits)[len(checks) :]:
                if report.failure:
                    raise_other_faults(options, report, process.wait(EXIT_SECONDS))
                checks.append(check)
                print_check(check)
            if checks and not checks[-1].passed:
                break
            if code is not None:
                break
    finally:
        code = process.kill()
    if (checks and not checks[-1].passed) or report.stage == "done":
        return report, checks
    end = findings.explain_kill(report.stage, process.limit_error, code)
    if end is None:
        raise SmokeTestError(f"the smoke test failed on this machine (exit code {code}): {get_reason(report)}")
    print_check(end)
    return report, [*checks, end]


def raise_other_faults(options: argparse.Namespace, report: SmokeReport, code: int | None) -> None:
    """Raise `SmokeTestError` for a failure of this machine, and `UserError` for one of the command line.

    A job's command line belongs to its entry, so its errors are findings.
    """
    if code == ExitCode.INFRASTRUCTURE:
        raise SmokeTestError(f"the smoke test failed on this machine: {get_reason(report)}")
    if code == ExitCode.USER_ERROR and not options.job and report.stage in COMMAND_LINE_STAGES:
        raise UserError(findings.lower(get_reason(report)))


def get_reason(report: SmokeReport) -> str:
    return report.failure.reason if report.failure else "it reported nothing"


def build_child_spec(options: argparse.Namespace, flags: Sequence[str], dataset: Dataset, out: Path) -> SandboxSpec:
    source = options.model_source or Path(trainer.__file__).resolve().parent.parent
    root = source.resolve()
    command = [sys.executable, "-s", "-P", "-m", "trainer.smoke.child", "--arch", options.arch]
    command += ["--small-dataset", str(dataset.folder), "--out", str(out)]
    command += ["--steps", str(options.steps), "--seconds", str(options.seconds), *flags]
    mounts = [Mount(root / "trainer"), Mount(out, writable=True)]
    mounts += [Mount(dataset.folder / name) for name in DATASET_FILES if (dataset.folder / name).exists()]
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
    return SandboxSpec(command, environment, mounts, out, LIMITS)


def read_losses(out: Path) -> list[float]:
    """Return the dev losses so far, in nats per token."""
    try:
        with open_file(out, "metrics.jsonl") as file:
            lines = file.read(MAX_REPORT_BYTES).splitlines()
    except (OSError, UnsafeFileError):
        return []
    losses = []
    for line in lines:
        with suppress(ValidationError):  # other lines, and an incomplete last one
            losses.append(DevLine.model_validate_json(line).loss)
    return losses


def build_record(
    report: SmokeReport, checks: Sequence[SmokeCheck], losses: Sequence[float], sandbox: str, seconds: float
) -> dict[str, Any]:
    """Return what `protocol.SmokeResult` has, as the site shows it."""
    count = report.parameters or ParameterCounts()
    failed = next((check for check in checks if not check.passed), None)
    return {
        "passed": failed is None,
        "sentence": failed.text if failed else "It imports, fits, learns and sees no later token.",
        "checks": [{"name": check.name, "passed": check.passed, "text": check.text} for check in checks],
        "file": failed.file if failed else "",
        "line": failed.line if failed else 0,
        "code": failed.code if failed else "",
        "hints": findings.list_hints(report, losses, VOCABULARY),
        "parameters": count.total,
        "parameters_embedding": count.embedding,
        **report.model_dump(include=set(Measurements.model_fields)),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "sandbox": sandbox,
        "seconds": round(seconds, 1),
    }
