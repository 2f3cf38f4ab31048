"""Who sends what no sound machine would changes nothing: the step stays right, and nobody else is banned."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch

from tests.support.swarm_chain import tiny
from trainer.data.dataset import Dataset
from trainer.swarm import messages, trust
from trainer.swarm.comparison import compute_max_difference, has_equal_hashes, has_exact_cover
from trainer.swarm.fault_injection import Fault
from trainer.swarm.journal import JournalLine, get_losses
from trainer.swarm.local_swarm import LocalSwarm

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

LONG = "SWARM_STEPS" in os.environ
STEPS = 24 if LONG else 8
A, B, C, D = ("Qm" + letter * 44 for letter in "abcd")


def swarm_with(folder: Path, lies: dict[str, tuple[str, int]], audit: float = 0.0) -> list[JournalLine]:
    """Run a swarm of two stages of three, some of whom lie from a step on; its losses are those of one process."""
    config = tiny(Dataset.open(folder), steps=STEPS, checkpoint_every=STEPS, micro_batches=12, audit=audit)
    faults = {name: [Fault(kind="drop", point=f"lie:{lie}", step=step)] for name, (lie, step) in lies.items()}
    wishes = [0, 1] * 3
    modules = dict.fromkeys(lies, "tests.support.swarm_liar")
    with LocalSwarm(config, folder, wishes, faults, timeout=10, modules=modules) as swarm:
        lines = swarm.run(250)
        assert not swarm.find_leftovers()
    found = get_losses(lines)
    difference = compute_max_difference(found, config, folder)
    bans = {line["label"]: line["why"] for line in lines if line["kind"] == "ban"}
    sys.stdout.write(f"{lies}: {len(found)} steps, {difference:.1e}, banned: {bans}\n")
    assert len(found) == STEPS
    assert difference < 1e-4
    assert has_exact_cover(lines, config)
    assert has_equal_hashes(lines)
    assert bans.keys() <= lies.keys()
    if LONG:  # in a short run more than half of somebody's callers may not have met it
        assert bans.keys() == lies.keys()
    return lines


def test_what_is_not_a_number_leaves_the_losses_right(dataset_folder: Path) -> None:
    swarm_with(dataset_folder, {"worker-0": ("hidden", 0), "worker-1": ("nan", 0)})


def test_wrong_shapes_and_a_huge_sum_leave_the_losses_right(dataset_folder: Path) -> None:
    swarm_with(dataset_folder, {"worker-0": ("huge sum", 0), "worker-1": ("shape", 0)})


def test_huge_gradients_and_an_old_sum_leave_the_losses_right(dataset_folder: Path) -> None:
    swarm_with(dataset_folder, {"worker-0": ("stale sum", 0), "worker-1": ("huge", 0)}, audit=1.0)


def test_gradients_huge_or_turned_around_from_the_first_on_leave_the_losses_right(
    dataset_folder: Path,
) -> None:
    swarm_with(dataset_folder, {"worker-1": ("huge", 0)})
    swarm_with(dataset_folder, {"worker-1": ("turned", 0)})


def ledger(*blamed: str) -> messages.Ledger:
    return messages.Ledger(held=(), blamed=tuple(messages.Blame(peer=peer, why="odd") for peer in blamed))


def test_it_takes_more_than_half_of_a_stage_to_have_somebody_banned() -> None:
    assert trust.peers_to_ban({0: {A: ledger(C), B: ledger()}, 1: {C: ledger(), D: ledger()}}, {}) == {}
    assert trust.peers_to_ban({0: {A: ledger(C), B: ledger(C)}, 1: {C: ledger(), D: ledger()}}, {}) == {C: "odd"}
    assert trust.peers_to_ban({0: {A: ledger()}, 1: {C: ledger(A)}}, {}) == {A: "odd"}


def test_nobody_is_banned_by_its_own_stage_and_the_coordinator_is_believed() -> None:
    assert trust.peers_to_ban({0: {A: ledger(B), B: ledger(A)}, 1: {C: ledger()}}, {}) == {}
    assert trust.peers_to_ban({0: {A: ledger()}, 1: {C: ledger()}}, {A: "a tensor", D: "gone"}) == {A: "a tensor"}


def test_a_sum_is_suspected_if_it_is_far_too_long_or_not_finite() -> None:
    held = {A: 2, B: 2, C: 4}
    read = {A: 1.0, B: 1.5, C: 3.9}
    assert trust.find_suspects({A: read, B: read, C: read}, held) == {}
    assert trust.find_suspects({A: {**read, C: 1e6}, B: {**read, C: 1e6}}, held).keys() == {C}
    assert trust.find_suspects({A: {**read, B: math.nan}}, held).keys() == {B}
    assert trust.find_suspects({A: read}, {**held, B: 0}).keys() == {B}


def test_a_gradient_far_larger_than_usual_is_odd() -> None:
    usual = trust.GradientNormTracker()
    for size in (1.0, 3.0, 2.0, 50.0):
        assert not usual.odd(torch.full((3,), size))
        usual.observe(torch.full((3,), size))
    assert usual.odd(torch.full((3,), 1e4))
    assert not usual.odd(torch.full((3,), 90.0))


def test_gradients_of_zero_as_where_a_head_begins_at_zero_and_what_is_no_number_do_not_become_usual() -> None:
    usual = trust.GradientNormTracker()
    for value in (0.0, math.nan, math.inf) * 9:
        usual.observe(torch.full((3,), value))
    assert not usual.known


def test_of_three_gradients_the_two_that_agree_are_right_whoever_came_first() -> None:
    sound, lie = torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 2.0])
    assert trust.majority_vote({A: lie, B: sound, C: sound * 1.001}, 0.01) == [B, C]
    assert trust.majority_vote({A: sound, B: sound}, 0.01) == [A, B]
    assert trust.majority_vote({A: torch.zeros(2), B: torch.zeros(2)}, 0.01) == [A, B]


def test_of_two_gradients_that_contradict_each_other_the_first_is_taken_unless_it_is_huge() -> None:
    sound = torch.tensor([1.0, -2.0])
    assert trust.majority_vote({A: sound * 1e6, B: sound}, 0.01) == [B]
    assert trust.majority_vote({A: sound * 1e6, B: sound, C: sound * 1e3}, 0.01) == [B]
    assert trust.majority_vote({A: sound, B: torch.zeros(2)}, 0.01) == [A]
    assert trust.majority_vote({A: sound, B: sound * 0.5}, 0.01) == [A]


def test_gradients_too_long_for_fp32_to_measure_do_not_agree_with_everything() -> None:
    sound = torch.tensor([1.0, -2.0])
    assert trust.majority_vote({A: sound * 1e20, B: sound}, 0.01) == [B]
    assert trust.majority_vote({A: sound * 1e20, B: sound, C: sound}, 0.01) == [B, C]
