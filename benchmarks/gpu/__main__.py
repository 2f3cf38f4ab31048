"""Run the parts that are not done yet and print the table of expected and measured figures.

A part's record is `OUT/PART.json` with its log beside it; a record of a part that succeeded is kept, so an interrupted
benchmark resumes where it stopped. `OUT/table.md` is the table for `benchmarks/results`. With `--smoke` all files are
in `OUT/smoke`, since a benchmark on a GPU must not use the small dataset.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.gpu.parts import Part, list_parts

WHEELS = (
    *("annotated-types", "pydantic", "pydantic_core", "typing-inspection", "jsonargparse", "docstring_parser"),
    *("typeshed_client", "litgpt", "lightning-fabric", "cryptography"),
)
"""What the trainer needs beside torch, Triton, Lightning, transformers, tokenizers and safetensors."""
MORE_WHEELS = ("torchao==0.18.0",)  # for fp8; not in the lock file
LOCK_FILE = Path(__file__).parents[2] / "requirements.lock"
SMOKE_SECONDS = 150  # limit of a part on a CPU
ENDING = 5.0  # seconds reserved for the table
COLUMNS = ("part", "figure", "expected", "measured", "verdict")


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if every part has succeeded."""
    options = parse_arguments(argv)
    out = options.out.resolve() / ("smoke" if options.smoke else "")
    parts = [part for part in list_parts(out) if not options.only or part.name in options.only]
    if options.wheels:
        sys.stdout.write(" ".join(list_wheels()) + "\n")
        return 0
    if options.list:
        print_table([row for part in parts for row in list_expected(part)])
        return 0
    out.mkdir(parents=True, exist_ok=True)
    run_parts(parts, out, options)
    rows = [row for part in parts for row in describe_part(part, read_record(out, part), options.smoke)]
    print_table(rows)
    (out / "table.md").write_text(format_markdown(rows))
    return 0 if all(is_done(read_record(out, part), options.smoke) for part in parts) else 1


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh", description=__doc__)
    add = parser.add_argument
    add("--smoke", action="store_true", help="the parts at a small size on a CPU")
    add("--list", action="store_true", help="print the parts and what is expected, and run nothing")
    add("--wheels", action="store_true", help="print the packages to carry to a machine that cannot download")
    add("--only", type=lambda text: text.split(","), default=[], metavar="PART,PART")
    add("--again", type=lambda text: text.split(","), default=[], metavar="PART,PART", help="repeat these parts")
    add("--seconds", type=float, default=560, help="start no part that could end later (%(default)s)")
    add("--out", type=Path, default=Path("benchmarks/out"), help="records, logs, caches and runs (%(default)s)")
    return parser.parse_args(argv)


def list_wheels() -> list[str]:
    """Return the packages with the versions of the lock file."""
    pinned = dict(line.split("==") for line in LOCK_FILE.read_text().splitlines() if "==" in line)
    return [*(f"{name}=={pinned[name]}" for name in WHEELS), *MORE_WHEELS]


def run_parts(parts: Sequence[Part], out: Path, options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds - ENDING
    for part in parts:
        if is_done(read_record(out, part), options.smoke) and part.name not in options.again:
            continue
        left = end - time.monotonic()
        seconds = SMOKE_SECONDS if options.smoke else min(part.seconds, options.seconds - 2 * ENDING)
        if left < seconds:
            sys.stderr.write(f"{part.name}: may take {seconds:.0f} s, and {max(0, left):.0f} s are left\n")
            continue
        sys.stderr.write(f"{part.name} ...\n")
        record = run_part(part, out, seconds, options.smoke)
        write_record(out / f"{part.name}.json", record)


def run_part(part: Part, out: Path, seconds: float, is_smoke: bool) -> dict[str, Any]:
    """Return the part's record; its log is `OUT/PART.log`."""
    arguments = part.small if is_smoke else part.command
    cache = {"DAILYTRAIN_CACHE": str(out / "cache")}
    started = time.monotonic()
    with (out / f"{part.name}.log").open("wb") as log:
        code, printed = run_process_group([sys.executable, *arguments], log, seconds, os.environ | cache)
        log.write(printed.encode())
    return {
        "command": shlex.join(["python", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "smoke": is_smoke,
        "seconds": round(time.monotonic() - started, 1),
        "code": code,
        "content": parse_content(printed),
    }


def run_process_group(
    command: Sequence[str], log: IO[bytes], seconds: float, environment: Mapping[str, str]
) -> tuple[int, str]:
    """Return exit code and standard output. After `seconds` kill the command and all that it started: code -1."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True)
    try:
        printed = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return -1, process.communicate()[0].decode(errors="replace")
    except BaseException:  # Ctrl-C reaches this process only
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, printed.decode(errors="replace")


def parse_content(printed: str) -> dict[str, Any]:
    """Return the JSON that a part printed; tests print text, of which the last line counts."""
    try:
        content = json.loads(printed)
    except ValueError:
        content = None
    if isinstance(content, dict):
        return content
    return {"last_line": next((line for line in reversed(printed.splitlines()) if line.strip()), "")}


def read_record(out: Path, part: Part) -> dict[str, Any] | None:
    try:
        return json.loads((out / f"{part.name}.json").read_text())
    except (OSError, ValueError):
        return None


def write_record(path: Path, record: dict[str, Any]) -> None:
    path.with_suffix(".part").write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".part").replace(path)


def is_done(record: dict[str, Any] | None, is_smoke: bool) -> bool:
    """Whether the part succeeded at this size."""
    return record is not None and record["code"] == 0 and record["smoke"] == is_smoke


def list_expected(part: Part) -> Iterator[tuple[str, ...]]:
    for expectation in part.expected:
        yield (f"{part.name} ({part.seconds} s)", expectation.name, expectation.describe(), "", "")


def describe_part(part: Part, record: dict[str, Any] | None, is_smoke: bool) -> Iterator[tuple[str, ...]]:
    """Yield the part's rows of the table."""
    if record is None:
        yield (part.name, "", "", "", "not run yet")
        return
    name = f"{part.name} ({record['seconds']:.0f} s)"
    if not is_done(record, is_smoke):
        reason = "out of time" if record["code"] == -1 else f"failed with code {record['code']}"
        yield (name, "", "", "", f"{reason}: see {part.name}.log")
        return
    if not part.expected:
        yield (name, "", "", "", "done")
    for expectation in part.expected:
        measured = expectation.read(record["content"])
        verdict = "starts" if record["smoke"] else expectation.judge(measured)
        shown = f"{expectation.format(measured)}{expectation.unit}" if measured is not None else ""
        yield (name, expectation.name, expectation.describe(), shown, verdict)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*map(escape, row))
    Console(width=160).print(table)


def format_markdown(rows: Sequence[tuple[str, ...]]) -> str:
    lines = (COLUMNS, ("---",) * len(COLUMNS), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
