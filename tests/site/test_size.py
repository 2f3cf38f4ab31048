"""`make size`: a package above its budget fails the check."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.processes


def measure_repository(folder: Path, budget: int) -> subprocess.CompletedProcess[str]:
    """Measure a package of three lines, one of them a migration's, in a new repository."""
    for name, text in (("pool/a.py", "a = 1\nb = 2\n"), ("pool/migrations/0001.py", "c = 3\n"), ("templates/x", "")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "size.py", folder / ".ci")
    (folder / "pyproject.toml").write_text(f"[tool.dailytrain.size]\npool = {budget}\ntemplates = 1\n")
    for command in (["init", "--quiet"], ["add", "pool", "templates"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return subprocess.run([sys.executable, ".ci/size.py"], cwd=folder, capture_output=True, text=True)


def test_size_within_budget_succeeds_and_leaves_migrations_out(tmp_path: Path) -> None:
    done = measure_repository(tmp_path, 2)
    assert (done.returncode, done.stdout.splitlines()[0].split()) == (0, ["pool", "2", "2"])


def test_size_over_budget_fails(tmp_path: Path) -> None:
    done = measure_repository(tmp_path, 1)
    assert done.returncode == 1
    assert "over budget" in done.stdout
