"""Swarms over real sockets have the losses of one process: with faults, over bad links, with short messages, resumed.

Three fault plans run at night, briefly. `make chaos-swarm` runs all over 60 steps, and random faults for ten minutes.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Container
from pathlib import Path

import pytest

from benchmarks.swarm.link import Links, LinkShape
from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.cli import main as dailytrain
from trainer.data.dataset import Dataset
from trainer.swarm.comparison import (
    ComparisonResult,
    SingleProcessRun,
    compare_with_single_process,
    has_equal_hashes,
    has_exact_cover,
)
from trainer.swarm.data import Batches
from trainer.swarm.fault_plans import count_members
from trainer.swarm.journal import JournalLine, get_losses
from trainer.swarm.local_swarm import LocalSwarm

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

pytestmark = pytest.mark.processes

STEPS = int(os.environ.get("SWARM_STEPS", "16"))
SECONDS = float(os.environ.get("SWARM_SECONDS", "0"))
"""Duration of repeated runs with random faults; 0: one short run."""

long = pytest.mark.skipif(STEPS < 60, reason="every swarm of processes takes a dozen seconds of CPU: make chaos-swarm")


def run_swarm(
    dataset: Path, chaos: str, workers: int = 2, timeout: float = 10.0, seed: int = 5
) -> tuple[ComparisonResult, list[JournalLine], Counter[str]]:
    """Run a swarm and one process, and check everything that must hold in every case."""
    every = max(1, STEPS // 4)
    config = build_tiny_config(Dataset.open(dataset), steps=STEPS, seed=seed, checkpoint_every=every)
    result, lines = compare_with_single_process(config, dataset, workers, chaos, timeout, WAIT_SECONDS)
    assert result.max_abs_loss_difference < 1e-4
    assert result.exact_cover
    assert result.hashes_equal
    assert not result.leftovers
    assert result.is_passed(STEPS)
    return result, lines, Counter(line["kind"] for line in lines)


@pytest.mark.parametrize(
    ("chaos", "timeout", "kills", "kind", "at_least"),
    [
        pytest.param("none", 10.0, {0}, "commit", STEPS, marks=long),
        pytest.param("kill", 10.0, {2}, "commit", STEPS, marks=pytest.mark.slow),
        pytest.param("drop", 10.0, {0}, "commit", STEPS, marks=long),
        pytest.param("stall", 1.5, range(100), "leave", 1, marks=long),
        pytest.param("prepare", 10.0, {2}, "commit", STEPS, marks=long),
        pytest.param("coordinator", 10.0, range(5, 100), "start", 6, marks=pytest.mark.slow),
        pytest.param("rebalance", 10.0, range(100), "move", 2, marks=long),
        pytest.param("resize", 10.0, {4}, "commit", STEPS, marks=long),
        pytest.param("stage", 10.0, {2}, "rollback", 1, marks=pytest.mark.slow),
    ],
)
def test_swarm_with_faults_equals_single_process(
    dataset_folder: Path, chaos: str, timeout: float, kills: Container[int], kind: str, at_least: int
) -> None:
    result, lines, kinds = run_swarm(dataset_folder, chaos, timeout=timeout)
    assert result.kills in kills
    assert kinds[kind] >= at_least
    match chaos:
        case "rebalance":
            assert "wants to leave" in {line["why"] for line in lines if line["kind"] == "leave"}
        case "resize":
            members = count_members(lines)
            assert [members[0], max(members), members[-1]] == [2, 12, 3]
            commits = [line for line in lines if line["kind"] == "commit"]
            assert max(len(votes) for line in commits for votes in line["votes"].values()) > 4
        case "stage":
            rollback = next(line for line in lines if line["kind"] == "rollback")
            assert rollback["lost"] == [1]
            assert rollback["to"] <= rollback["from"]


@long
def test_random_faults_change_nothing(dataset_folder: Path) -> None:
    started = time.monotonic()
    for seed in itertools.count(1):
        result, _, kinds = run_swarm(dataset_folder, "all", workers=3 if SECONDS else 2, timeout=2.0, seed=seed)
        sys.stdout.write(f"seed {seed}: {result}; {dict(kinds)}\n")
        if time.monotonic() - started > SECONDS:
            break


# --- slow and broken links, undialable machines -----------------------------------------------------------------------


@pytest.mark.slow
def test_swarm_over_slow_breaking_links_equals_single_process(dataset_folder: Path) -> None:
    config = build_tiny_config(Dataset.open(dataset_folder), steps=8, checkpoint_every=8)
    with Links(LinkShape(megabits=100, milliseconds=50, cuts=0.04), seed=1) as links:
        result, _ = compare_with_single_process(
            config, dataset_folder, 2, "none", timeout=15, seconds=WAIT_SECONDS, links=links.get_proxy_port
        )
    sys.stdout.write(f"{result}; {links.cut} connections cut, {links.transferred} bytes\n")
    assert result.is_passed(8)
    assert links.transferred > 0


@pytest.mark.slow
def test_undialable_workers_connect_by_relay(dataset_folder: Path) -> None:
    config = build_tiny_config(Dataset.open(dataset_folder), steps=8, checkpoint_every=8)
    hidden = {"worker-0", "worker-1"}
    result, lines = compare_with_single_process(
        config, dataset_folder, 1, "none", timeout=60, seconds=WAIT_SECONDS, undialable=hidden
    )
    assert result.is_passed(8)
    assert {line["label"] for line in lines if line["kind"] == "join"} == hidden, "no other worker took part"
    assert next(line["seconds"] for line in lines if line["kind"] == "commit") < 150, "libp2p alone takes three minutes"


# --- hidden states and gradients in 16 bits ---------------------------------------------------------------------------

MESSAGE_STEPS = 24


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["bf16", "fp16", "fp8"])
def test_short_messages_keep_the_loss_within_one_percent(wire: str, dataset_folder: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    settings = {"steps": MESSAGE_STEPS, "learning_rate": 3e-3, "checkpoint_every": MESSAGE_STEPS, "audit": 0.2}
    config = build_tiny_config(dataset, wire=wire, sums="bf16", **settings)
    with LocalSwarm(config, dataset_folder, [0, 1, 0, 1], timeout=10) as swarm:
        lines = swarm.run(WAIT_SECONDS)
    assert has_exact_cover(lines, config)
    assert has_equal_hashes(lines)
    assert not [line for line in lines if line["kind"] == "ban"]
    reference = SingleProcessRun(config, Batches(dataset, config))
    last = [reference.run_step() for _ in range(config.steps)][-1]
    assert get_losses(lines)[-1] == pytest.approx(last, rel=0.01)


# --- one worker a stage: checkpoints and commands ---------------------------------------------------------------------


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
