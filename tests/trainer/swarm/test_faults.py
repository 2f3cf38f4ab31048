"""A swarm of processes over real sockets, with every fault plan, has the losses of one process.

By default three plans run, briefly. `make chaos-swarm` runs all over 60 steps, and random faults for ten minutes.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.data.dataset import Dataset
from trainer.swarm.comparison import ComparisonResult, compare_with_single_process
from trainer.swarm.fault_plans import count_members
from trainer.swarm.journal import JournalLine

pytestmark = pytest.mark.processes

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

STEPS = int(os.environ.get("SWARM_STEPS", "16"))
SECONDS = float(os.environ.get("SWARM_SECONDS", "0"))
"""Duration of repeated runs with random faults; 0: one short run."""

long = pytest.mark.skipif(STEPS < 60, reason="every swarm of processes takes a dozen seconds of CPU: make chaos-swarm")


def swarm(
    dataset: Path,
    chaos: str,
    workers: int = 2,
    timeout: float = 10.0,
    seed: int = 5,
) -> tuple[ComparisonResult, list[JournalLine]]:
    """Run a swarm and one process, and check everything that must hold in every case."""
    every = max(1, STEPS // 4)
    config = build_tiny_config(Dataset.open(dataset), steps=STEPS, seed=seed, checkpoint_every=every)
    result, lines = compare_with_single_process(config, dataset, workers, chaos, timeout, WAIT_SECONDS)
    assert result.max_abs_loss_difference < 1e-4
    assert result.exact_cover
    assert result.hashes_equal
    assert not result.leftovers
    assert result.is_passed(STEPS)
    return result, lines


def kinds(lines: list[JournalLine]) -> Counter[str]:
    return Counter(line["kind"] for line in lines)


@long
def test_swarm_without_faults_equals_single_process(dataset_folder: Path) -> None:
    result, lines = swarm(dataset_folder, "none")
    assert result.kills == 0
    assert kinds(lines)["commit"] == STEPS


@pytest.mark.slow
def test_killed_workers_are_replaced(dataset_folder: Path) -> None:
    result, _ = swarm(dataset_folder, "kill")
    assert result.kills == 2


@long
def test_answer_lost_after_accumulation_counts_once(dataset_folder: Path) -> None:
    result, _ = swarm(dataset_folder, "drop")
    assert result.kills == 0


@long
def test_late_gradients_and_frozen_worker_change_nothing(dataset_folder: Path) -> None:
    _, lines = swarm(dataset_folder, "stall", timeout=1.5)
    assert kinds(lines)["leave"] >= 1


@long
def test_workers_killed_inside_prepare_change_nothing(dataset_folder: Path) -> None:
    result, _ = swarm(dataset_folder, "prepare")
    assert result.kills == 2


@pytest.mark.slow
def test_coordinator_killed_at_every_point_resumes(dataset_folder: Path) -> None:
    result, lines = swarm(dataset_folder, "coordinator")
    assert result.kills >= 5
    assert kinds(lines)["start"] >= 6


@long
def test_rebalancing_moves_peers(dataset_folder: Path) -> None:
    _, lines = swarm(dataset_folder, "rebalance")
    assert kinds(lines)["move"] >= 2
    assert "wants to leave" in {line["why"] for line in lines if line["kind"] == "leave"}


@long
def test_swarm_of_two_grows_to_twelve_and_shrinks_to_three(dataset_folder: Path) -> None:
    result, lines = swarm(dataset_folder, "resize")
    assert result.kills == 4
    assert [count_members(lines)[0], max(count_members(lines)), count_members(lines)[-1]] == [2, 12, 3]
    assert max(len(votes) for line in lines if line["kind"] == "commit" for votes in line["votes"].values()) > 4


@pytest.mark.slow
def test_lost_stage_returns_to_the_last_checkpoint(dataset_folder: Path) -> None:
    result, lines = swarm(dataset_folder, "stage")
    assert result.kills == 2
    rollback = next(line for line in lines if line["kind"] == "rollback")
    assert rollback["lost"] == [1]
    assert rollback["to"] <= rollback["from"]


@long
def test_random_faults_change_nothing(dataset_folder: Path) -> None:
    started = time.monotonic()
    for seed in itertools.count(1):
        result, lines = swarm(dataset_folder, "all", workers=3 if SECONDS else 2, timeout=2.0, seed=seed)
        sys.stdout.write(f"seed {seed}: {result}; {dict(kinds(lines))}\n")
        if time.monotonic() - started > SECONDS:
            break
