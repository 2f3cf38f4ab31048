"""`make size`: a package above its budget fails the check."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.processes

MAIN = "def main(argv: list[str]) -> int:\n    return 0\n"


def measure_repository(
    folder: Path, budget: int, loaded_modules: int = 3, options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Measure a package of three lines, one of them a migration's, and a training run of three modules, in a new
    repository."""
    package = (("pool/a.py", "a = 1\nb = 2\n"), ("pool/migrations/0001.py", "c = 3\n"), ("templates/x", ""))
    run = (("trainer/__init__.py", ""), ("trainer/cli/__init__.py", ""), ("trainer/cli/main.py", MAIN))
    for name, text in (*package, *run):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "size.py", folder / ".ci")
    budgets = f'pool = {budget}\ntemplates = 1\n"loaded modules" = {loaded_modules}\n'
    (folder / "pyproject.toml").write_text(f"[tool.dailytrain.size]\n{budgets}")
    for command in (["init", "--quiet"], ["add", "pool", "templates"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return subprocess.run([sys.executable, ".ci/size.py", *options], cwd=folder, capture_output=True, text=True)


def test_size_within_budget_succeeds_and_leaves_migrations_out(tmp_path: Path) -> None:
    done = measure_repository(tmp_path, 2)
    assert (done.returncode, done.stdout.splitlines()[0].split()) == (0, ["pool", "2", "2"])


def test_size_over_budget_fails(tmp_path: Path) -> None:
    done = measure_repository(tmp_path, 1)
    assert done.returncode == 1
    assert "over budget" in done.stdout


@pytest.mark.parametrize(("budget", "code"), [(3, 0), (2, 1)])
def test_size_of_loaded_modules_over_budget_fails(tmp_path: Path, budget: int, code: int) -> None:
    done = measure_repository(tmp_path, 2, budget, ["--loaded"])
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[2].split()[:4] == ["loaded", "modules", "3", str(budget)]
