"""The plain pipeline, one worker a stage: checkpoints, exact resume, and what the commands make of its run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.cli import main as dailytrain
from trainer.data.dataset import Dataset
from trainer.swarm.comparison import compute_max_difference
from trainer.swarm.config import SwarmConfig
from trainer.swarm.fault_injection import Fault
from trainer.swarm.journal import get_losses
from trainer.swarm.local_swarm import FaultPlan, LocalSwarm, SwarmStuckError
from trainer.swarm.sample_main import find_addresses

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

STEPS = 12


def run_pipeline(config: SwarmConfig, dataset: Path, out: Path, until: int | None = None) -> list[dict[str, Any]]:
    """Run or resume a pipeline; kill all its processes when `until` steps are journaled. Return the journal."""
    faults = [] if until is None else [[Fault(kind="kill", point="journaled", step=until - 1)]]
    with LocalSwarm(config, dataset, [0, 1], FaultPlan(coordinator=faults), timeout=30, out=out) as pipeline:
        if until is None:
            return pipeline.run(WAIT_SECONDS)
        assert pipeline.coordinator is not None
        pipeline.coordinator.join(WAIT_SECONDS)
        assert pipeline.count_steps() == until
        return pipeline.read_journal()


@pytest.mark.slow
def test_killed_pipeline_resumes_exactly_from_its_checkpoint(dataset_folder: Path, tmp_path: Path) -> None:
    """One micro-batch a step: several would be added in the order in which they come, with other last digits."""
    sizes = {"steps": STEPS, "checkpoint_every": 4, "micro_batches": 1, "micro_batch": 4}
    config = build_tiny_config(Dataset.open(dataset_folder), **sizes)
    interrupted = run_pipeline(config, dataset_folder, tmp_path / "run", until=6)
    lines = run_pipeline(config, dataset_folder, tmp_path / "run")
    whole = run_pipeline(config, dataset_folder, tmp_path / "whole")
    assert [line for line in interrupted if line["kind"] == "end"] == []
    assert lines[: len(interrupted)] == interrupted
    resumed = [line["step"] for line in lines[len(interrupted) :] if line["kind"] == "commit"]
    assert resumed[0] >= 4  # the last checkpoint, or a later one
    assert get_losses(lines) == get_losses(whole)
    digests = [list(stages["digests"][stage].values()) for stages in (lines[-1], whole[-1]) for stage in ("0", "1")]
    assert digests[:2] == digests[2:]
    assert compute_max_difference(get_losses(lines), config, dataset_folder) < 1e-4


@pytest.mark.slow
def test_local_command_resumes_and_leaves_a_run_to_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("argparse", "ast", "inspect", "typing", "tarfile", "textwrap"):
        (text / f"{name}.txt").write_text(Path(os.__file__).with_name(f"{name}.py").read_text())
    out = tmp_path / "run"
    options = ["--stages", "2", "--workers", "1", "--steps", "8", "--micro-batches", "2", "--timeout", "30"]
    command = ["swarm", "local", "--corpus", f"files:{text}", *options, "--wire", "fp8", "--out", str(out)]
    assert dailytrain.main([*command, "--seconds", "0"]) == 1  # interrupted at once
    assert dailytrain.main([*command, "--no-compare", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["max_abs_loss_difference"] is None
    assert "not compared" in captured.err
    assert dailytrain.main(["sample", str(out), "--prompt", "The train", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("The train")
    assert dailytrain.main(command) == 2
    assert "has ended" in capsys.readouterr().err
    (out / "run.json").unlink()  # as after an interruption between the last step and the assembly
    assert dailytrain.main(command) == 0
    assert (out / "run.json").exists()


@pytest.mark.slow
def test_second_swarm_in_a_folder_leaves_the_first_its_address(dataset_folder: Path, tmp_path: Path) -> None:
    config = build_tiny_config(Dataset.open(dataset_folder))
    with LocalSwarm(config, dataset_folder, [], out=tmp_path) as first:
        address = first.wait_for_address()
        with LocalSwarm(config, dataset_folder, [], out=tmp_path) as second, pytest.raises(SwarmStuckError):
            second.wait_for_address()
        assert find_addresses(str(tmp_path)) == (address,)
