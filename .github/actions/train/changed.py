"""Find out which architectures a pull request changes, for the jobs that come after. Standard library only.

Read from the sources, not by importing them: `ARCHITECTURES` in trainer/models/__init__.py names each one's module.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

REGISTRY = Path("trainer/models/__init__.py")
BASELINE = "gpt"


def main() -> int:
    asked = os.environ.get("ASKED", "").split()
    names = asked or architectures(changed(os.environ.get("BASE", "")))
    # The site trains what an entry changes: with several, a person says which one (docs/how-to/ci.md).
    one = names[0] if len(names) == 1 and (asked or names != [BASELINE]) else ""
    for line in (f"architectures={' '.join(names)}", f"one={one}"):
        print(line)
        if path := os.environ.get("GITHUB_OUTPUT"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    return 0


def changed(base: str) -> list[str]:
    """Return the paths that differ from where this commit left `base`; none without a base."""
    if not base:
        return []
    command = ["git", "diff", "--name-only", f"{base}...HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def architectures(paths: list[str]) -> list[str]:
    """Return the names whose module is among the paths; the baseline where something else of `trainer/` is."""
    found = [name for name, file in registry().items() if file in paths]
    return found or ([BASELINE] if any(path.startswith("trainer/") for path in paths) else [])


def named(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def registry() -> dict[str, str]:
    """Return name -> path of its module."""
    for node in ast.parse(REGISTRY.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and named(node) == "ARCHITECTURES":
            table = ast.literal_eval(node.value)
            return {str(name): f"{str(module).replace('.', '/')}.py" for name, module in table.items()}
    raise SystemExit(f"{REGISTRY} has no ARCHITECTURES that can be read without running it")


if __name__ == "__main__":
    sys.exit(main())
