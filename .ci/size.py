"""`make size`: Python lines of each package and the number of templates, beside the budgets in pyproject.toml.

Migrations do not count. With `--loaded`, `loaded modules` and `loaded lines` are those of `trainer/` that a training
run of three steps loads. Its dataset is prepared before, since preparing texts is no part of training.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TINY_RUN = "train --preset tiny --device cpu --budget 3steps --limit_bytes 300000 --out"
LIST_LOADED = """
import atexit, sys
from trainer.cli.main import main
def list_modules():
    files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "trainer"]
    print(*filter(None, files), sep="\\n")
atexit.register(list_modules)
sys.exit(main(sys.argv[1:]))
"""


def count_lines(files: list[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


def list_files(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def measure(name: str) -> int:
    if name == "templates":
        return len(list_files("templates"))
    return count_lines([file for file in list_files(f"{name}/*.py") if "migrations" not in file.parts])


def list_loaded_files() -> list[Path]:
    """Train three steps in a process, and return the files of `trainer/` that it has loaded."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", LIST_LOADED, *TINY_RUN.split()]
        for name in ("first", "second"):  # the first one may prepare the dataset
            done = subprocess.run([*command, f"{folder}/{name}"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()]


def main() -> int:
    budgets: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dailytrain"]["size"]
    if "--loaded" in sys.argv:
        files = list_loaded_files()
        loaded = {"loaded modules": len(files), "loaded lines": count_lines(files)}
    else:
        loaded = {}
        budgets = {name: budget for name, budget in budgets.items() if not name.startswith("loaded")}
    measured = {name: loaded[name] if name in loaded else measure(name) for name in budgets}
    for name, budget in budgets.items():
        over = "  over budget" if measured[name] > budget else ""
        sys.stdout.write(f"{name:16}{measured[name]:8,}{budget:8,}{over}\n")
    return any(measured[name] > budget for name, budget in budgets.items())


if __name__ == "__main__":
    sys.exit(main())
