"""Faulty peers change no loss, and no other peer is banned."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch

from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.data.dataset import Dataset
from trainer.swarm import messages, trust
from trainer.swarm.comparison import compute_max_difference, has_equal_hashes, has_exact_cover
from trainer.swarm.fault_injection import Fault
from trainer.swarm.journal import JournalLine, get_losses
from trainer.swarm.local_swarm import FaultPlan, LocalSwarm

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

LONG = "SWARM_STEPS" in os.environ
STEPS = 24 if LONG else 8
A, B, C, D = ("Qm" + letter * 44 for letter in "abcd")


def check_swarm(folder: Path, lies: dict[str, tuple[str, int]], audit: float = 0.0) -> list[JournalLine]:
    """Run a swarm of two stages of three with lying workers; check that its losses are those of one process."""
    config = build_tiny_config(Dataset.open(folder), steps=STEPS, checkpoint_every=STEPS, micro_batches=12, audit=audit)
    faults = {name: [Fault(kind="drop", point=f"lie:{lie}", step=step)] for name, (lie, step) in lies.items()}
    requested = [0, 1] * 3
    modules = dict.fromkeys(lies, "tests.trainer.swarm.swarm_liar")
    with LocalSwarm(config, folder, requested, FaultPlan(faults), timeout=10, modules=modules) as swarm:
        lines = swarm.run(WAIT_SECONDS)
        assert not swarm.find_leftovers()
    losses = get_losses(lines)
    difference = compute_max_difference(losses, config, folder)
    bans = {line["label"]: line["why"] for line in lines if line["kind"] == "ban"}
    sys.stdout.write(f"{lies}: {len(losses)} steps, {difference:.1e}, banned: {bans}\n")
    assert len(losses) == STEPS
    assert difference < 1e-4
    assert has_exact_cover(lines, config)
    assert has_equal_hashes(lines)
    assert bans.keys() <= lies.keys()
    if LONG:  # in a short run more than half of a liar's callers may not have called it
        assert bans.keys() == lies.keys()
    return lines


@pytest.mark.slow
def test_nan_from_liars_leaves_losses_right(dataset_folder: Path) -> None:
    check_swarm(dataset_folder, {"worker-0": ("hidden", 0), "worker-1": ("nan", 0)})


@pytest.mark.slow
def test_wrong_shapes_and_huge_sum_leave_losses_right(dataset_folder: Path) -> None:
    check_swarm(dataset_folder, {"worker-0": ("huge sum", 0), "worker-1": ("shape", 0)})


@pytest.mark.slow
def test_huge_gradients_and_stale_sum_leave_losses_right(dataset_folder: Path) -> None:
    check_swarm(dataset_folder, {"worker-0": ("stale sum", 0), "worker-1": ("huge", 0)}, audit=1.0)


@pytest.mark.slow
def test_initial_huge_or_negated_gradients_leave_losses_right(dataset_folder: Path) -> None:
    check_swarm(dataset_folder, {"worker-1": ("huge", 0)})
    check_swarm(dataset_folder, {"worker-1": ("turned", 0)})


def ledger(*blamed: str) -> messages.Ledger:
    return messages.Ledger(held=(), blamed=tuple(messages.Blame(peer=peer, why="wrong") for peer in blamed))


def test_ban_needs_blame_by_more_than_half_of_a_stage() -> None:
    assert trust.peers_to_ban({0: {A: ledger(C), B: ledger()}, 1: {C: ledger(), D: ledger()}}, {}) == {}
    assert trust.peers_to_ban({0: {A: ledger(C), B: ledger(C)}, 1: {C: ledger(), D: ledger()}}, {}) == {C: "wrong"}
    assert trust.peers_to_ban({0: {A: ledger()}, 1: {C: ledger(A)}}, {}) == {A: "wrong"}


def test_repeated_blame_by_one_peer_counts_once() -> None:
    assert trust.peers_to_ban({0: {A: ledger(C, C, C), B: ledger()}, 1: {C: ledger(), D: ledger()}}, {}) == {}


def test_own_stage_cannot_ban_and_coordinator_can() -> None:
    assert trust.peers_to_ban({0: {A: ledger(B), B: ledger(A)}, 1: {C: ledger()}}, {}) == {}
    assert trust.peers_to_ban({0: {A: ledger()}, 1: {C: ledger()}}, {A: "a tensor", D: "gone"}) == {A: "a tensor"}


def test_sum_too_long_or_not_finite_is_suspicious() -> None:
    held = {A: 2, B: 2, C: 4}
    norms = {A: 1.0, B: 1.5, C: 3.9}
    assert trust.find_suspects({A: norms, B: norms, C: norms}, held) == {}
    assert trust.find_suspects({A: {**norms, C: 1e6}, B: {**norms, C: 1e6}}, held).keys() == {C}
    assert trust.find_suspects({A: {**norms, B: math.nan}}, held).keys() == {B}
    assert trust.find_suspects({A: norms}, {**held, B: 0}).keys() == {B}


def test_gradient_far_above_median_is_an_outlier() -> None:
    tracker = trust.GradientNormTracker()
    for size in (1.0, 3.0, 2.0, 50.0):
        assert not tracker.describe_outlier(torch.full((3,), size))
        tracker.observe(torch.full((3,), size))
    assert tracker.describe_outlier(torch.full((3,), 1e4))
    assert not tracker.describe_outlier(torch.full((3,), 90.0))


def test_tracker_ignores_zero_and_non_finite_gradients() -> None:
    tracker = trust.GradientNormTracker()
    for value in (0.0, math.nan, math.inf) * 9:
        tracker.observe(torch.full((3,), value))
    assert not tracker.is_ready


def test_majority_of_three_gradients_wins() -> None:
    gradient, lie = torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 2.0])
    assert trust.majority_vote({A: lie, B: gradient, C: gradient * 1.001}, 0.01) == [B, C]
    assert trust.majority_vote({A: gradient, B: gradient}, 0.01) == [A, B]
    assert trust.majority_vote({A: torch.zeros(2), B: torch.zeros(2)}, 0.01) == [A, B]


def test_first_of_two_differing_gradients_wins_unless_huge() -> None:
    gradient = torch.tensor([1.0, -2.0])
    assert trust.majority_vote({A: gradient * 1e6, B: gradient}, 0.01) == [B]
    assert trust.majority_vote({A: gradient * 1e6, B: gradient, C: gradient * 1e3}, 0.01) == [B]
    assert trust.majority_vote({A: gradient, B: torch.zeros(2)}, 0.01) == [A]
    assert trust.majority_vote({A: gradient, B: gradient * 0.5}, 0.01) == [A]


def test_gradients_beyond_fp32_norm_do_not_match_others() -> None:
    gradient = torch.tensor([1.0, -2.0])
    assert trust.majority_vote({A: gradient * 1e20, B: gradient}, 0.01) == [B]
    assert trust.majority_vote({A: gradient * 1e20, B: gradient, C: gradient}, 0.01) == [B, C]
