"""Each optional extra of the package can be installed: pip finds wheels that fit together."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # pip asks the package index about each
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NEED_A_GPU = ("vllm",)  # it brings its own torch


def run_pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, cwd=REPOSITORY)


@pytest.fixture(scope="module", autouse=True)
def package_index() -> None:
    if run_pip("index", "versions", "packaging").returncode != 0:
        pytest.skip("no package index can be reached")


@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra not in NEED_A_GPU])
def test_extra_can_be_installed(extra: str) -> None:
    done = run_pip("install", "--dry-run", "--quiet", "--no-build-isolation", f".[{extra}]")
    assert done.returncode == 0, done.stderr
