"""Run `dailytrain smoke` for each architecture and write its result into the job's summary. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOT_READY = 3
"""Exit code of `dailytrain smoke`: the architecture is not ready."""


def main() -> int:
    names = os.environ.get("ARCHITECTURES", "").split()
    if not names:
        return print_error("There is no architecture to test: set `architecture`.")
    return max(run_smoke_test(name) for name in names)


def run_smoke_test(name: str) -> int:
    """Test one architecture; return the command's exit code."""
    command = [sys.executable, "-m", "trainer.cli", "smoke", name, "--json", *get_sandbox_flags()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # its errors go to the log
    if done.returncode not in (0, NOT_READY):
        return print_error(f"The smoke test of {name} could not run (exit code {done.returncode}); the log says why.")
    result = json.loads(done.stdout)
    write_summary(format_result(name, result))
    if not result["passed"]:
        where = f" file={escape_command(result['file'])},line={result['line']}" if result["file"] else ""
        print(f"::error{where}::{escape_command(result['sentence'])}")
    return done.returncode


def get_sandbox_flags() -> Sequence[str]:
    """Use no sandbox on GitHub: its runners are deleted after the job and may forbid namespaces."""
    return ("--sandbox", "none") if os.environ.get("GITHUB_ACTIONS") == "true" else ()


def format_result(name: str, result: dict[str, Any]) -> list[str]:
    lines = [f"### Smoke test of `{name}`: {'ready' if result['passed'] else 'not ready'}", "", result["sentence"], ""]
    lines += ["| check | | |", "|---|---|---|"]
    for check in result["checks"]:
        lines.append(f"| {check['name']} | {'yes' if check['passed'] else 'no'} | {format_cell(check['text'])} |")
    return [*lines, *(f"\n{hint}" for hint in result["hints"])]


def format_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def escape_command(text: str) -> str:
    """Return text as it may stand in a workflow command."""
    return str(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def print_error(sentence: str) -> int:
    """Print an error, also to the summary; return its exit code."""
    print(f"::error::{escape_command(sentence)}")
    write_summary([sentence])
    return 2


def write_summary(lines: Sequence[str]) -> None:
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
