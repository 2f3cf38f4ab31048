"""A training step on a GPU is launched without waiting for the GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.cuda_predicted.fake_h100 import find_missing_program
from tests.support.paths import REPOSITORY

MISSING = find_missing_program()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed: `make test-cuda` installs triton"),
]


@pytest.mark.check
def test_launched_step_reads_nothing_and_waits_for_no_copy() -> None:
    command = [sys.executable, "-m", "tests.cuda.launch_step"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["optimizers"] == ["CompiledMuon", "AdamW", "TableAdamW", "RowAdagrad"]
    assert report["tables"] == 2
    assert report["waits"] == {}
