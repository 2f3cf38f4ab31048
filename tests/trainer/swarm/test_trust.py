"""Faulty peers change no loss, and no other peer is banned."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.in_process_swarm import train_in_process
from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm import messages, trust
from trainer.swarm.comparison import compute_max_difference, has_equal_hashes, has_exact_cover
from trainer.swarm.data import Batches
from trainer.swarm.frames import RpcFrame
from trainer.swarm.journal import get_losses, read_journal
from trainer.swarm.next_stage_client import NextStageClient, StageQuery
from trainer.swarm.sum_exchange import SumExchange
from trainer.swarm.worker import Worker

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

LONG = "SWARM_STEPS" in os.environ
STEPS = 24 if LONG else 8
A, B, C, D = ("Qm" + letter * 44 for letter in "abcd")


GRADIENT_LIES: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda gradient: gradient * float("nan"),
    "shape": lambda gradient: gradient[:, :-1],
    "huge": lambda gradient: gradient * 1e6,
    "turned": lambda gradient: -gradient,
}
SUM_LIES = {"huge sum": 1e6, "zero sum": 0.0}
"""Factors of a worker's gradient sum, which its vote uses, too."""


def build_liar(lie: str) -> type[Worker]:
    """Return a worker that joins like any other and sends wrong results."""

    class LyingSumExchange(SumExchange):
        def get_own_part(self, part: messages.SumPart) -> Tensor:
            return super().get_own_part(part) * SUM_LIES.get(lie, 1.0)

    class LyingNextStageClient(NextStageClient):
        def build_query(self, *arguments: Any) -> StageQuery:
            query = super().build_query(*arguments)
            *inputs, hidden = query.tensors
            return replace(query, tensors=(*inputs, hidden * float("nan"))) if lie == "hidden" else query

    class LyingWorker(Worker):
        exchange_type = LyingSumExchange
        next_stage_type = LyingNextStageClient

        async def backward(self, *arguments: Any) -> RpcFrame:
            answer = await super().backward(*arguments)
            change = GRADIENT_LIES.get(lie)
            return RpcFrame(answer.body, tuple(map(change, answer.tensors))) if change else answer

    return LyingWorker


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lies", "audit"),
    [
        (["hidden", "nan"], 0.0),
        (["huge sum", "shape"], 0.0),
        (["zero sum", "huge"], 1.0),
        (["turned"], 0.0),
    ],
)
def test_liars_change_no_loss_and_no_other_peer_is_banned(
    dataset_folder: Path, tmp_path: Path, lies: list[str], audit: float
) -> None:
    """In a swarm of two stages of three workers. Its losses are those of one process."""
    dataset = Dataset.open(dataset_folder)
    config = build_tiny_config(dataset, steps=STEPS, checkpoint_every=STEPS, micro_batches=12, audit=audit)
    liars = {number: build_liar(lie) for number, lie in enumerate(lies)}
    train_in_process(Batches(dataset, config), tmp_path, [0, 1] * 3, liars)
    lines = read_journal(tmp_path / "run")
    losses = get_losses(lines)
    bans = {line["label"]: line["why"] for line in lines if line["kind"] == "ban"}
    assert len(losses) == STEPS
    assert compute_max_difference(losses, config, dataset_folder) < 1e-4
    assert has_exact_cover(lines, config)
    assert has_equal_hashes(lines)
    assert bans.keys() <= {str(number) for number in liars}
    if LONG:  # in a short run more than half of a liar's callers may not have called it
        assert bans.keys() == {str(number) for number in liars}


def ledger(*blamed: str) -> messages.Ledger:
    return messages.Ledger(held=(), blamed=tuple(messages.Blame(peer=peer, why="wrong") for peer in blamed))


def test_ban_needs_blame_by_more_than_half_of_another_stage_or_by_the_coordinator() -> None:
    last = {C: ledger(), D: ledger()}
    assert trust.peers_to_ban({0: {A: ledger(C), B: ledger()}, 1: last}, {}) == {}
    assert trust.peers_to_ban({0: {A: ledger(C), B: ledger(C)}, 1: last}, {}) == {C: "wrong"}
    assert trust.peers_to_ban({0: {A: ledger()}, 1: {C: ledger(A)}}, {}) == {A: "wrong"}
    assert trust.peers_to_ban({0: {A: ledger(C, C, C), B: ledger()}, 1: last}, {}) == {}, "repeated blame counts once"
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
    for value in (0.0, math.nan, math.inf) * 9:
        tracker.observe(torch.full((3,), value))
    assert not tracker.is_ready
    for size in (1.0, 3.0, 2.0, 50.0):
        assert not tracker.describe_outlier(torch.full((3,), size))
        tracker.observe(torch.full((3,), size))
    assert tracker.describe_outlier(torch.full((3,), 1e4))
    assert not tracker.describe_outlier(torch.full((3,), 90.0))


GRADIENT = torch.tensor([1.0, -2.0])


@pytest.mark.parametrize(
    ("gradients", "majority"),
    [
        ([-GRADIENT, GRADIENT, GRADIENT * 1.001], [B, C]),
        ([GRADIENT, GRADIENT], [A, B]),
        ([GRADIENT * 0, GRADIENT * 0], [A, B]),
        # Of two that differ, the first wins unless it is huge.
        ([GRADIENT, GRADIENT * 0], [A]),
        ([GRADIENT, GRADIENT * 0.5], [A]),
        ([GRADIENT * 1e6, GRADIENT], [B]),
        ([GRADIENT * 1e6, GRADIENT, GRADIENT * 1e3], [B]),
        # Their norm is beyond fp32.
        ([GRADIENT * 1e20, GRADIENT], [B]),
        ([GRADIENT * 1e20, GRADIENT, GRADIENT], [B, C]),
    ],
)
def test_majority_vote_returns_peers_of_the_right_gradient(gradients: list[Tensor], majority: list[str]) -> None:
    assert trust.majority_vote(dict(zip((A, B, C), gradients, strict=False)), 0.01) == majority
