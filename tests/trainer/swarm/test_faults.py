"""A swarm of real processes over real sockets, with faults of every kind: its losses are those of one process.

A few here, short; `make chaos-swarm` has all of them over 60 steps, and all kinds together at random for ten minutes.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.swarm_chain import tiny
from trainer.data.dataset import Dataset
from trainer.swarm.journal import Line
from trainer.swarm.local import Result, compare, sizes

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

STEPS = int(os.environ.get("SWARM_STEPS", "16"))
PATIENCE = 280 if STEPS < 60 else 900
"""Seconds after which a swarm counts as stuck."""
SECONDS = float(os.environ.get("SWARM_SECONDS", "0"))
"""Of everything at random, over and over; 0: once, short."""

long = pytest.mark.skipif(STEPS < 60, reason="every swarm of processes takes a dozen seconds of CPU: make chaos-swarm")


def swarm(
    dataset: Path, chaos: str, workers: int = 2, patience: float = 10.0, seed: int = 5
) -> tuple[Result, list[Line]]:
    """Run it, and one process beside it; all that must hold in any case is looked at here."""
    config = tiny(Dataset.open(dataset), steps=STEPS, seed=seed, checkpoint_every=max(1, STEPS // 4))
    result, lines = compare(config, dataset, workers, chaos, patience, seconds=PATIENCE)
    assert result.max_abs_loss_difference < 1e-4
    assert result.exact_cover
    assert result.hashes_equal
    assert not result.left_behind
    assert result.held(STEPS)
    return result, lines


def kinds(lines: list[Line]) -> Counter[str]:
    return Counter(line["kind"] for line in lines)


@long
def test_without_faults_it_is_one_process(dataset_folder: Path) -> None:
    result, lines = swarm(dataset_folder, "none")
    assert result.kills == 0
    assert kinds(lines)["commit"] == STEPS


def test_a_worker_of_each_stage_is_killed_and_newcomers_join(dataset_folder: Path) -> None:
    result, _ = swarm(dataset_folder, "kill")
    assert result.kills == 2


@long
def test_an_answer_is_lost_after_its_gradient_was_added(dataset_folder: Path) -> None:
    result, _ = swarm(dataset_folder, "drop")
    assert result.kills == 0


@long
def test_gradients_come_when_nobody_waits_any_more_and_a_worker_stands_still(dataset_folder: Path) -> None:
    _, lines = swarm(dataset_folder, "stall", patience=1.5)
    assert kinds(lines)["leave"] >= 1


@long
def test_workers_are_killed_inside_prepare(dataset_folder: Path) -> None:
    result, _ = swarm(dataset_folder, "prepare")
    assert result.kills == 2


def test_the_coordinator_is_killed_at_every_point_of_a_step(dataset_folder: Path) -> None:
    result, lines = swarm(dataset_folder, "coordinator")
    assert result.kills >= 5
    assert kinds(lines)["start"] >= 6


@long
def test_peers_move_to_where_they_are_needed(dataset_folder: Path) -> None:
    _, lines = swarm(dataset_folder, "rebalance")
    assert kinds(lines)["move"] >= 2
    assert "wants to leave" in {line["why"] for line in lines if line["kind"] == "leave"}


@long
def test_a_world_of_two_grows_to_twelve_and_shrinks_to_three(dataset_folder: Path) -> None:
    result, lines = swarm(dataset_folder, "resize")
    assert result.kills == 4
    assert [sizes(lines)[0], max(sizes(lines)), sizes(lines)[-1]] == [2, 12, 3]
    assert max(len(votes) for line in lines if line["kind"] == "commit" for votes in line["votes"].values()) > 4


def test_a_stage_that_is_lost_comes_back_from_the_last_checkpoint(dataset_folder: Path) -> None:
    result, lines = swarm(dataset_folder, "stage")
    assert result.kills == 2
    rollback = next(line for line in lines if line["kind"] == "rollback")
    assert rollback["lost"] == [1]
    assert rollback["to"] <= rollback["from"]


@long
def test_everything_at_random(dataset_folder: Path) -> None:
    started = time.monotonic()
    for seed in itertools.count(1):
        result, lines = swarm(dataset_folder, "all", workers=3 if SECONDS else 2, patience=2.0, seed=seed)
        sys.stdout.write(f"seed {seed}: {result}; {dict(kinds(lines))}\n")
        if time.monotonic() - started > SECONDS:
            break
