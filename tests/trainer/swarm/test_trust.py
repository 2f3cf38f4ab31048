"""Faulty peers change no loss and no other peer is banned; a model that diverges ends its run without a ban."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.data.dataset import Dataset
from trainer.swarm import messages, trust
from trainer.swarm.comparison import compute_max_difference, has_equal_hashes, has_exact_cover
from trainer.swarm.coordinator import Coordinator, CoordinatorOptions
from trainer.swarm.data import Batches
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.frames import CallRefusedError, RpcFrame
from trainer.swarm.journal import Journal, get_losses, read_journal
from trainer.swarm.membership import Membership, SwarmMember
from trainer.swarm.next_stage_client import NextStageClient, StageQuery
from trainer.swarm.stage_client import DIVERGED, StageClient
from trainer.swarm.sum_exchange import SumExchange
from trainer.swarm.transaction import DivergedError, Transaction, is_same_result
from trainer.swarm.transport import Transport
from trainer.swarm.worker import Worker

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")


LONG = "SWARM_STEPS" in os.environ
STEPS = 24 if LONG else 8
A, B, C, D, E = NAMES = tuple("Qm" + letter * 44 for letter in "abcde")


# --- a swarm in this process, over real connections, for the coordinator's own exceptions -----------------------------


def train_in_process(
    batches: Batches,
    folder: Path,
    requested_stages: Sequence[int],
    worker_types: Mapping[int, type[Worker]] = MappingProxyType({}),
    evaluation_interval: int = 0,
) -> None:
    """Train with one worker for each requested stage, named "0", "1", ... The run's folder is `folder / "run"`.

    `worker_types`: the classes of workers that are not `Worker`, by number.
    """
    options = CoordinatorOptions(WAIT_SECONDS, peers=len(requested_stages), evaluation_interval=evaluation_interval)
    training = train(batches, folder, requested_stages, options, worker_types)
    asyncio.run(asyncio.wait_for(training, WAIT_SECONDS))


def read_sanctions(folder: Path) -> list[tuple[str, str]]:
    """Return the labels of the workers of `train_in_process` that got a first strike or left, and why."""
    lines = read_journal(folder / "run")
    labels = {line["peer"]: line["label"] for line in lines if line["kind"] == "join"}
    return [(labels[line["peer"]], line["why"]) for line in lines if line["kind"] in ("first_strike", "leave")]


async def train(
    batches: Batches,
    folder: Path,
    requested_stages: Sequence[int],
    options: CoordinatorOptions,
    worker_types: Mapping[int, type[Worker]],
) -> None:
    home, *others = transports = [Transport(folder / name) for name in ("run", *map(str, range(len(requested_stages))))]
    coordinator = Coordinator(home.folder, batches, home, options)
    workers: list[asyncio.Task[None]] = []
    try:
        await asyncio.gather(*(transport.start() for transport in transports))
        for number, (transport, stage) in enumerate(zip(others, requested_stages, strict=True)):
            hello = messages.Hello(label=transport.folder.name, preferred_stage=stage)
            worker = worker_types.get(number, Worker)(transport, home.addresses, hello, FaultInjector(), "cpu")
            workers.append(asyncio.create_task(worker.serve()))
        await coordinator.train()
    finally:
        coordinator.journal.close()
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await asyncio.gather(*(transport.close() for transport in transports))


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
    [(["hidden", "nan"], 0.0), (["huge sum", "shape"], 0.0), (["zero sum", "huge"], 1.0), (["turned"], 0.0)],
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


# --- votes of a stage on its mean gradient and its norm, which clips the whole model's gradient -----------------------


@pytest.fixture
def transaction(dataset: Dataset, tmp_path: Path) -> Iterator[Transaction]:
    """The first step of a swarm: A, B and C at the first stage, D and E at the last. E is older than D."""
    batches = Batches(dataset, build_tiny_config(dataset))
    with contextlib.closing(Journal(tmp_path)) as journal:
        membership = Membership(Transport(tmp_path), batches.config, journal, 1.0)
        for name in NAMES:
            membership.members[name] = SwarmMember(messages.Peer(name=name), int(name in (D, E)), int(name == D))
        yield Transaction(0, batches, membership, StageClient(membership.transport))


def build_votes(*norms: float) -> dict[str, messages.Vote]:
    votes = (messages.Vote(digest="1" * 64, squared_norm=norm) for norm in norms)
    return dict(zip(NAMES, votes, strict=True))


def find_outvoted(transaction: Transaction, *norms: float) -> list[str]:
    return [n for stage in (0, 1) for n in transaction.find_outvoted(stage, build_votes(*norms), is_same_result)]


@pytest.mark.parametrize(
    ("norms", "outvoted"),
    [
        *(((lie, 1.0, 1.0, 2.0, 2.0), [A]) for lie in (1e300, 0.0, 1.1, math.inf, math.nan)),
        *(((1.0, 1.0, 1.0, lie, 2.0), [D]) for lie in (1e300, math.nan)),  # the older of two members decides
        ((1.0, 1.0 + 1e-9, 1.0 - 1e-9, 0.0, 0.0), []),  # rounding errors
    ],
)
def test_norm_against_the_majority_or_the_older_member_is_outvoted(
    transaction: Transaction, norms: tuple[float, ...], outvoted: list[str]
) -> None:
    assert find_outvoted(transaction, *norms) == outvoted


def test_norm_of_a_model_is_the_sum_of_medians(transaction: Transaction) -> None:
    assert transaction.compute_squared_norm(build_votes(1.0009, 1.0, 1.0, 2.0, 2.0)) == 3.0


@pytest.mark.parametrize("norms", [(math.nan,) * 3, (math.inf,) * 3, (math.nan, math.inf, math.nan)])
def test_norms_that_are_not_finite_raise_diverged_error(transaction: Transaction, norms: tuple[float, ...]) -> None:
    assert find_outvoted(transaction, *norms, 1.0, 1.0) == []
    with pytest.raises(DivergedError):
        transaction.compute_squared_norm(build_votes(*norms, 1.0, 1.0))


# --- audits of gradient sums ------------------------------------------------------------------------------------------


def list_sanctions(
    dataset_folder: Path, folder: Path, exchange: type[SumExchange], workers: int = 3, audit: float = 0.0
) -> list[tuple[str, str]]:
    """Train workers of one stage, of which worker 1 lies, with one micro-batch a step; return the sanctions."""
    dataset = Dataset.open(dataset_folder)
    batches = Batches(dataset, build_tiny_config(dataset, stages=1, steps=2, micro_batches=1, audit=audit))
    liar = type("LyingWorker", (Worker,), {"exchange_type": exchange})
    train_in_process(batches, folder, [0] * workers, {1: liar})
    return read_sanctions(folder)


class FalseNormExchange(SumExchange):
    """Vote that each idle peer has published a sum other than zero."""

    async def vote(self, request: messages.Prepare) -> messages.Vote:
        vote = await super().vote(request)
        return vote.model_copy(update={"norms": tuple((peer, norm or 1.0) for peer, norm in vote.norms)})


class FalseDistanceExchange(FalseNormExchange):
    """Repeat that in audits."""

    async def compare_replay(self, request: messages.CompareReplay) -> messages.ReplayDistance:
        return messages.ReplayDistance(relative=1.0, finite=True)


class FalseSumExchange(SumExchange):
    """Publish a sum other than zero without a micro-batch."""

    def get_own_part(self, part: messages.SumPart) -> Tensor:
        tensor = super().get_own_part(part)
        return tensor if self.state.held else torch.ones_like(tensor)


class UnreadableSumExchange(SumExchange):
    """Refuse to auditors what each peer has read for the reduction."""

    async def vote(self, request: messages.Prepare) -> messages.Vote:
        self.reads_left = len(request.peers)
        return await super().vote(request)

    def get_own_part(self, part: messages.SumPart) -> Tensor:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise CallRefusedError("slow", "the sum is not available yet")
        return super().get_own_part(part)


def test_idle_peer_stays_when_an_auditor_lies_about_its_sum(dataset_folder: Path, tmp_path: Path) -> None:
    sanctions = list_sanctions(dataset_folder, tmp_path, FalseDistanceExchange)
    assert {label for label, _ in sanctions} <= {"1"}


def test_idle_peer_with_a_sum_is_banned(dataset_folder: Path, tmp_path: Path) -> None:
    why = "its gradient sum is not zero without any micro-batch"
    assert list_sanctions(dataset_folder, tmp_path, FalseSumExchange) == [("1", why)]


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_peer_whose_sum_no_auditor_can_read_leaves(dataset_folder: Path, tmp_path: Path, workers: int) -> None:
    sanctions = list_sanctions(dataset_folder, tmp_path, UnreadableSumExchange, workers, audit=1.0)
    assert {label for label, _ in sanctions} == {"1"}
    assert all("no audit" in why for _, why in sanctions)
    assert not any(line["kind"] in ("ban", "first_strike") for line in read_journal(tmp_path / "run"))


# --- divergence -------------------------------------------------------------------------------------------------------

SANCTIONS = {"leave", "ban", "first_strike", "rollback"}


THE_GRADIENT, HIDDEN = "the gradient", "a hidden state"
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("arch", "workers", "what", "evaluation_interval", "changes"),
    [
        pytest.param("gpt", [0, 0], THE_GRADIENT, 0, {"stages": 1, "weight_decay": 1e20}, id="loss"),
        pytest.param("nanogpt", [0, 1, 0, 1], THE_GRADIENT, 0, {"weight_decay": 1e9}, id="gradient", marks=slow),
        pytest.param("litgpt", [0, 1], HIDDEN, 0, {"weight_decay": 1e12}, id="one worker a stage", marks=slow),
        pytest.param("gpt", [0, 1, 0, 1], HIDDEN, 0, {"weight_decay": 1e2, "wire": "fp16"}, id="beyond fp16"),
        pytest.param("litgpt", [0, 1, 0, 1], HIDDEN, 1, {"weight_decay": 1e12}, id="evaluation", marks=slow),
    ],
)
def test_swarm_whose_weights_explode_ends_with_diverged_error(
    dataset: Dataset,
    tmp_path: Path,
    arch: str,
    workers: list[int],
    what: str,
    evaluation_interval: int,
    changes: dict[str, Any],
) -> None:
    batches = Batches(dataset, build_tiny_config(dataset, arch, learning_rate=0.9, warmup_steps=0, **changes))
    with pytest.raises(DivergedError, match=f"step .*: {what} is not finite"):
        train_in_process(batches, tmp_path, workers, evaluation_interval=evaluation_interval)
    kinds = read_kinds(tmp_path)
    assert "commit" in kinds
    assert not kinds & SANCTIONS


def read_kinds(folder: Path) -> set[str]:
    return {line["kind"] for line in read_journal(folder / "run")}


class RefusingWorker(Worker):
    """Claim that the model has diverged."""

    async def run_micro_batch(self, request: messages.RunRequest, frame: RpcFrame) -> RpcFrame:
        raise CallRefusedError(DIVERGED)


def train_with_refusals(dataset_folder: Path, folder: Path, refusing: Sequence[int]) -> None:
    """Train two workers of each of two stages; `refusing` are the numbers of those that lie."""
    dataset = Dataset.open(dataset_folder)
    batches = Batches(dataset, build_tiny_config(dataset, steps=2))
    train_in_process(batches, folder, [0, 0, 1, 1], dict.fromkeys(refusing, RefusingWorker))


@slow
def test_swarm_ends_only_when_all_of_a_stage_claim_divergence(dataset_folder: Path, tmp_path: Path) -> None:
    train_with_refusals(dataset_folder, tmp_path / "one of each", [0, 2])
    assert "end" in read_kinds(tmp_path / "one of each")
    with pytest.raises(DivergedError):
        train_with_refusals(dataset_folder, tmp_path / "all of one", [2, 3])
    assert not (read_kinds(tmp_path / "one of each") | read_kinds(tmp_path / "all of one")) & SANCTIONS
