"""`dailytrain smoke ARCH [--json]`: a minute on this machine, before anybody waits for a GPU."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import trainer
from trainer.cli.parser import Parser
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.data.errors import CorpusError, DatasetError, TokenizerError
from trainer.sandbox import Mount, ResourceLimits, SandboxDriver, SandboxError, SandboxSpec, get_driver
from trainer.sandbox.safe_files import UnsafeFileError, open_file, read_json_object
from trainer.smoke import findings
from trainer.smoke.causality import check_causality
from trainer.smoke.findings import SmokeCheck, SmokeLimits
from trainer.smoke.terminal import print_conclusion, show_checks

DONE, INFRASTRUCTURE, BAD_INPUT, FOUND, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes; 3: the architecture is not ready."""
CORPUS, TOKENIZER, VOCABULARY, LIMIT_BYTES = "python-library", "bpe:512", 512, 2**20
"""Of the small dataset: text that every Python carries."""
VISIBLE = ("manifest.json", "tokenizer.json", "train", "dev")
STEPS = 200
SECONDS = 120.0
LIMITS = ResourceLimits(wall_seconds=900, memory_bytes=3 * 10**9, disk_bytes=500 * 10**6, processes=48)
"""Of the process with the architecture in it."""
ANSWER_BYTES = 100_000
LOOK_SECONDS = 0.1
ENDING_SECONDS = 10.0
"""From its last word to its end."""
DEFAULT_SIZE = ("--preset", "daily-h100")
"""What is counted as its full size where nothing is said."""
CORRECTED = ("imports", "sizes")
"""Stages at which what the process calls bad input was on the command line."""

Show = Callable[[SmokeCheck], None]


class Broken(Exception):
    """This machine is at fault; the message is a sentence."""


class UsageError(ValueError):
    """What was asked for cannot be."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 ready, 1 the machine's fault, 2 bad input, 3 not ready, 130 interrupted."""
    try:
        options, flags = parse(argv)
        with show_checks(options) as show:
            record = smoke(options, flags, show)
    except (SandboxError, Broken) as error:
        return complain(str(error), INFRASTRUCTURE)
    except (UsageError, CorpusError, DatasetError, TokenizerError) as error:
        return complain(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    if options.json:
        print(json.dumps(record))  # noqa: T201 (the command's output)
    else:
        print_conclusion(options.arch, record)
    return DONE if record["passed"] else FOUND


def complain(line: str, code: int) -> int:
    sys.stderr.write(f"dailytrain smoke: {' '.join(line.split())}\n")
    return code


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return our own options, and those of `dailytrain train`."""
    parser = Parser(
        prog="dailytrain smoke",
        description="Find most mistakes of an architecture in a minute, on the CPU: does it import, answer in the "
        "right shape, fit, learn, and see no later token?",
        epilog="Further options are those of dailytrain train: the size that is counted (--preset, --model.depth, "
        "--config FILE; daily-h100 where nothing is said).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("arch", metavar="ARCH", help="a name of `dailytrain arch list`")
    add("--json", action="store_true", help="print JSON")
    add("--sandbox", default="auto", help="auto, bubblewrap or none (auto: bubblewrap where it works)")
    add("--steps", type=positive, default=STEPS, help=f"optimizer steps of the small model ({STEPS})")
    add("--seconds", type=float, default=SECONDS, help=argparse.SUPPRESS)
    add("--config", type=Path, help="TOML or JSON file, as for dailytrain train: the size that is counted")
    add("--memory-bytes", type=float, help="memory of the machine that it is meant for")
    add("--peak", type=float, help="FLOP/s of the machine that it is meant for")
    add("--model-source", type=Path, help="a folder with a trainer/ package whose files the model is built from")
    add("--data", type=Path, help=argparse.SUPPRESS)
    add("--job", action="store_true", help="started by a node's agent: nothing is shown, the log goes to stderr")
    options, flags = parser.parse_known_args(argv)
    if options.sandbox not in ("auto", "bubblewrap", "none") or (options.job and options.sandbox == "auto"):
        raise UsageError(f"the sandboxes are auto, bubblewrap and none, not {options.sandbox}")
    return options, flags if flags or options.config else list(DEFAULT_SIZE)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("it should be at least 1")
    return value


# --- the run ----------------------------------------------------------------------------------------------------------


def smoke(options: argparse.Namespace, flags: Sequence[str], show: Show) -> dict[str, Any]:
    """Return the record that `--json` prints. Raises one of the errors that `main` knows."""
    began = time.monotonic()
    box = sandbox(options.sandbox)
    asked = SmokeLimits(options.arch, options.steps, options.seconds, options.memory_bytes, options.peak)
    with tempfile.TemporaryDirectory(prefix="smoke-") as made:
        root = Path(made).resolve()
        out, private = root / "out", root / "run"
        out.mkdir()
        private.mkdir()
        dataset = prepare_dataset(CORPUS, TOKENIZER, options.data, LIMIT_BYTES)
        with log(options, root) as output:
            told, checks = confined(options, flags, asked, box, dataset, out, output, show)
            if checks[-1].passed:
                source = options.model_source.resolve() if options.model_source else None
                checks.append(check_causality(out, private, dataset, box, source, output if options.job else None))
                show(checks[-1])
        return record(told, checks, losses(out), box.name, time.monotonic() - began)


def sandbox(name: str) -> SandboxDriver:
    """Return the driver; raise `SandboxError` where it does not work."""
    chosen = get_driver("bubblewrap" if name == "auto" else name)
    reason = chosen.find_problem()
    if reason and name != "auto":
        raise SandboxError(reason)
    return get_driver("none") if reason else chosen


@contextmanager
def log(options: argparse.Namespace, root: Path) -> Iterator[IO[bytes]]:
    """Yield where the architecture's own words go: a job's log, or nowhere."""
    if options.job:
        yield sys.stderr.buffer
        return
    with Path(os.devnull).open("wb") as nowhere:
        yield nowhere


def confined(
    options: argparse.Namespace,
    flags: Sequence[str],
    asked: SmokeLimits,
    box: SandboxDriver,
    dataset: Dataset,
    out: Path,
    output: IO[bytes],
    show: Show,
) -> tuple[dict[str, Any], list[SmokeCheck]]:
    """Run what has the architecture in it; return what it told and the checks decided, showing each."""
    process = box.start(inside(options, flags, dataset, out), stdout=output, stderr=output)
    checks: list[SmokeCheck] = []
    try:
        while True:
            code = process.wait(LOOK_SECONDS)
            told = read_json_object(out, "smoke.json", ANSWER_BYTES) or {}
            for check in findings.decide_checks(told, losses(out), asked)[len(checks) :]:
                if "failure" in told:
                    misled(options, told, process.wait(ENDING_SECONDS))
                checks.append(check)
                show(check)
            if checks and not checks[-1].passed:
                break
            if code is not None:
                break
    finally:
        code = process.kill()
    if (checks and not checks[-1].passed) or told.get("stage") == "done":
        return told, checks
    end = findings.explain_kill(told.get("stage"), process.limit_error, code)
    if end is None:
        raise Broken(f"the smoke run could not work on this machine (exit code {code}): {last_words(told)}")
    show(end)
    return told, [*checks, end]


def misled(options: argparse.Namespace, told: dict[str, Any], code: int | None) -> None:
    """Raise `Broken` for a failure that was this machine's, and `UsageError` for what a person got wrong on the
    command line. Of a job that is the entry's."""
    if code == INFRASTRUCTURE:
        raise Broken(f"the smoke run could not work on this machine: {last_words(told)}")
    if code == BAD_INPUT and not options.job and told.get("stage") in CORRECTED:
        raise UsageError(findings.lower(last_words(told)))


def last_words(told: dict[str, Any]) -> str:
    why = told.get("failure")
    return findings.words(why.get("reason"), 300) if isinstance(why, dict) else "it left no word"


def inside(options: argparse.Namespace, flags: Sequence[str], dataset: Dataset, out: Path) -> SandboxSpec:
    source = options.model_source or Path(trainer.__file__).resolve().parent.parent
    root = source.resolve()
    command = [sys.executable, "-s", "-P", "-m", "trainer.smoke.child", "--arch", options.arch]
    command += ["--small-dataset", str(dataset.folder), "--out", str(out)]
    command += ["--steps", str(options.steps), "--seconds", str(options.seconds), *flags]
    mounts = [Mount(root / "trainer"), Mount(out, writable=True)]
    mounts += [Mount(dataset.folder / name) for name in VISIBLE if (dataset.folder / name).exists()]
    if options.config:
        file = options.config.resolve()
        if not file.is_file():
            raise UsageError(f"there is no file {options.config}")
        command += ["--config", str(file)]
        mounts.append(Mount(file))
    environment = {
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # a smoke run leaves GPUs alone
    }
    return SandboxSpec(command, environment, mounts, out, LIMITS)


def losses(out: Path) -> list[float]:
    """Return the losses on dev so far, in nats a token."""
    try:
        with open_file(out, "metrics.jsonl") as file:
            lines = file.read(ANSWER_BYTES).splitlines()
    except (OSError, UnsafeFileError):
        return []
    found = []
    for line in lines:
        row = parsed(line)
        if row.get("kind") == "dev" and (loss := findings.number(row, "loss")) is not None:
            found.append(loss)
    return found


def parsed(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:  # its last line may be half written
        return {}
    return row if isinstance(row, dict) else {}


def record(
    told: dict[str, Any], checks: Sequence[SmokeCheck], found: Sequence[float], sandbox: str, seconds: float
) -> dict[str, Any]:
    """Return what `protocol.SmokeResult` has, as the site shows it."""
    parameters = told.get("parameters")
    count = parameters if isinstance(parameters, dict) else {}
    failed = next((check for check in checks if not check.passed), None)
    return {
        "passed": failed is None,
        "sentence": failed.text if failed else "It imports, fits, learns and sees no later token.",
        "checks": [{"name": check.name, "passed": check.passed, "text": check.text} for check in checks],
        "file": failed.file if failed else "",
        "line": failed.line if failed else 0,
        "code": failed.code if failed else "",
        "hints": findings.hints(told, found, VOCABULARY),
        "parameters": findings.number(count, "total"),
        "parameters_embedding": findings.number(count, "embedding"),
        **{name: findings.number(told, name) for name in NUMBERS},
        "first_loss": found[0] if found else None,
        "last_loss": found[-1] if found else None,
        "sandbox": sandbox,
        "seconds": round(seconds, 1),
    }


NUMBERS = (
    "flops_per_token",
    "state_bytes",
    "tokens_per_step",
    "depth",
    "sequence_length",
    "steps",
    "train_seconds",
    "tokens_per_second",
    "memory_bytes",
)
