"""Programs that a test starts without the developer's own variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY

KEPT = ("PATH", "COVERAGE_PROCESS_CONFIG")  # the second one makes `make coverage` measure the program, too


def build_clean_environment(**variables: str) -> dict[str, str]:
    """Return `KEPT` of this process, and the given variables."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | variables


def run_python(home: Path, *words: str, code: int | None = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python for a site of this checkout in `home`; fail if it does not exit with `code`. None: with any other."""
    paths = {
        "DAILYTRAIN_HOME": str(home),
        "PYTHONPATH": str(REPOSITORY),
        "DJANGO_SETTINGS_MODULE": "dailytrain.settings",
    }
    environment = build_clean_environment(**{**paths, **variables})
    done = subprocess.run([sys.executable, *words], cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == code or (code is None and done.returncode), done.stdout + done.stderr
    return done
