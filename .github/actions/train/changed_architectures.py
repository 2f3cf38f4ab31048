"""List the architectures that a pull request changes, for the next jobs of a workflow. Standard library only.

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
    requested = os.environ.get("ARCHITECTURES", "").split()
    names = requested or find_architectures(list_changed_files(os.environ.get("BASE", "")))
    # A run trains one architecture. If several changed, a person chooses one (docs/how-to/ci.md).
    one = names[0] if len(names) == 1 and (requested or names != [BASELINE]) else ""
    for line in (f"architectures={' '.join(names)}", f"one={one}"):
        print(line)
        if path := os.environ.get("GITHUB_OUTPUT"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    return 0


def list_changed_files(base: str) -> list[str]:
    """Return the paths that differ from where this commit left `base`; none without a base."""
    if not base:
        return []
    command = ["git", "diff", "--name-only", f"{base}...HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def find_architectures(paths: list[str]) -> list[str]:
    """Return the names whose module is among the paths; the baseline where something else of `trainer/` is."""
    found = [name for name, module in read_registry().items() if any(is_part_of(path, module) for path in paths)]
    return found or ([BASELINE] if any(path.startswith("trainer/") for path in paths) else [])


def is_part_of(path: str, module: str) -> bool:
    """Whether a path is the module's file, or a file of the package that it is."""
    return path == f"{module}.py" or path.startswith(f"{module}/")


def get_assigned_name(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def read_registry() -> dict[str, str]:
    """Return name -> path of its module, without `.py`."""
    for node in ast.parse(REGISTRY.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and get_assigned_name(node) == "ARCHITECTURES":
            table = ast.literal_eval(node.value)
            return {str(name): str(module).replace(".", "/") for name, module in table.items()}
    raise SystemExit(f"{REGISTRY} has no ARCHITECTURES that can be read without running it")


if __name__ == "__main__":
    sys.exit(main())
