"""Run `dailytrain smoke` for each architecture and put what it found into the job's summary. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOUND = 3
"""Exit code of `dailytrain smoke`: the architecture is not ready."""


def main() -> int:
    names = os.environ.get("ARCHITECTURES", "").split()
    if not names:
        return complain("There is no architecture to test: set `architecture`.")
    return max(smoke(name) for name in names)


def smoke(name: str) -> int:
    """Test one architecture; return the command's exit code."""
    command = [sys.executable, "-m", "trainer.cli", "smoke", name, "--json", *sandbox()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # its complaints go to the log
    if done.returncode not in (0, FOUND):
        return complain(f"The smoke test of {name} could not run (exit code {done.returncode}); the log says why.")
    found = json.loads(done.stdout)
    summary(lines(name, found))
    if not found["passed"]:
        where = f" file={escaped(found['file'])},line={found['line']}" if found["file"] else ""
        print(f"::error{where}::{escaped(found['sentence'])}")
    return done.returncode


def sandbox() -> Sequence[str]:
    """The runner is a throwaway machine already, where namespaces may be closed to us."""
    return ("--sandbox", "none") if os.environ.get("GITHUB_ACTIONS") == "true" else ()


def lines(name: str, found: dict[str, Any]) -> list[str]:
    said = [f"### Smoke test of `{name}`: {'ready' if found['passed'] else 'not ready'}", "", found["sentence"], ""]
    said += ["| check | | |", "|---|---|---|"]
    said += [f"| {one['name']} | {'yes' if one['passed'] else 'no'} | {cell(one['text'])} |" for one in found["checks"]]
    return [*said, *(f"\n{hint}" for hint in found["hints"])]


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def escaped(text: str) -> str:
    """Return text as it may stand in a workflow command."""
    return str(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def complain(sentence: str) -> int:
    print(f"::error::{escaped(sentence)}")
    summary([sentence])
    return 2


def summary(lines: Sequence[str]) -> None:
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
