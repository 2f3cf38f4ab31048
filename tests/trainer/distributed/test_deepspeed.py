"""Our `zero2` beside DeepSpeed's ZeRO-2 on two CPU processes. Skipped where DeepSpeed is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS
from tests.trainer.distributed.deepspeed_zero2 import STEPS

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed: pip install deepspeed"
    ),
]


def test_zero2_losses_and_norms_equal_deepspeeds(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [*launcher, "-m", "tests.trainer.distributed.deepspeed_zero2", str(out)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    ours, deepspeed = result["ours"], result["deepspeed"]
    assert len(ours) == len(deepspeed) == STEPS
    assert ours[-1][0] < ours[0][0] / 100  # the model learned
    for (loss, norm), (other_loss, other_norm) in zip(ours, deepspeed, strict=True):
        assert loss == pytest.approx(other_loss, abs=1e-6, rel=1e-5)
        assert norm == pytest.approx(other_norm, abs=1e-6, rel=1e-5)


@pytest.mark.filterwarnings("default")  # of DeepSpeed's import
def test_fabric_refuses_deepspeed_on_cpus() -> None:
    """Why it is not a strategy of ours: it cannot be tested. If this fails, Fabric has changed."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DeepSpeedStrategy

    fabric = Fabric(accelerator="cpu", devices=1, strategy=DeepSpeedStrategy(stage=2))
    with pytest.raises(RuntimeError, match="only supported on CUDA GPUs"):
        fabric.launch()
