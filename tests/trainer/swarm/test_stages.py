"""Chained stages equal the whole model and train like it: their batches, memory, gradient sums and updates."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.swarm_chain import SHAPES, build_stages, build_tiny_config, run_forward, train_stages
from trainer.data.dataset import Dataset
from trainer.data.loader import BlockLoader
from trainer.swarm import sum_exchange
from trainer.swarm.adamw import AdamW
from trainer.swarm.buffers import MAX_CACHES, MAX_SLOTS, MemoryPlan, limit_in_flight, plan_memory
from trainer.swarm.comparison import iter_losses
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.frames import CallRefusedError
from trainer.swarm.messages import (
    CachePosition,
    Commit,
    PositionRequest,
    Prepare,
    RunRequest,
    StateRequest,
    StepRequest,
)
from trainer.swarm.partitions import PartitionError, balance_blocks
from trainer.swarm.stage import Stage, StateError, build_model
from trainer.swarm.worker_state import WorkerState

OPTIONS = [{name: False} for name in ("x0_lambdas", "backout", "value_embeddings")]


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        *((arch, {}) for arch in SHAPES),
        *(("gpt", each) for each in (*OPTIONS, {"document_mask": True, "softcap": 0.0})),
    ],
)
def test_chained_stages_train_like_the_whole_model(dataset: Dataset, arch: str, options: dict[str, Any]) -> None:
    if options:
        options = {**build_tiny_config(dataset).model, **options, "end_of_text": dataset.tokenizer.end_of_text}
    config = build_tiny_config(dataset, arch, stages=3, **({"model": options} if options else {}))
    batches = Batches(dataset, config)
    losses = list(train_stages(build_stages(config), batches, 4))
    expected = list(iter_losses(config, batches, 4))
    assert losses == pytest.approx(expected, abs=1e-6)
    assert losses[-1] < losses[0]


def test_bf16_loss_is_close_and_sums_are_fp32(dataset: Dataset) -> None:
    config = build_tiny_config(dataset, precision="bf16")
    batches = Batches(dataset, config)
    stages = build_stages(config)
    losses = list(train_stages(stages, batches, 3))
    assert losses == pytest.approx(list(iter_losses(build_tiny_config(dataset), batches, 3)), rel=0.01)
    assert {stage.gradient_sum.dtype for stage in stages} == {torch.float32}
    assert all(tensor.dtype == torch.float32 for stage in stages for tensor in stage.copy_state().values())


def test_stages_without_learning_compute_nats_and_input_gradients(dataset: Dataset) -> None:
    config = build_tiny_config(dataset)
    stages, whole = build_stages(config), build_model(config).eval()
    tokens, targets = next(Batches(dataset, config).iter_dev(2))
    hidden = stages[0].forward(tokens, None, learn=False).output
    nats = torch.nn.functional.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten(), reduction="none")
    assert torch.allclose(stages[1].compute_nats(tokens, hidden, targets).flatten(), nats, atol=1e-5)
    first, last = run_forward(stages, Batches(dataset, config), 0, 0)
    gradient, gradients = stages[1].backward(last, learn=False)
    assert gradients == []
    assert gradient is not None
    assert gradient.shape == first.output.shape
    assert stages[0].backward(first, gradient, learn=False) == (None, [])


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        *((arch, {}) for arch in SHAPES),
        ("gpt", {"document_mask": True}),
        ("gpt", {"windows": "SL", "short_window": 3}),
        ("litgpt", {"sliding_window_size": 4, "sliding_window_indices": [1, 0, 1]}),
    ],
)
def test_cached_logits_equal_the_whole_models(dataset: Dataset, arch: str, changes: dict[str, Any]) -> None:
    model = dict(build_tiny_config(dataset, arch).model)
    if arch == "litgpt":
        model["fields"] = model["fields"] | changes
    elif changes:
        model |= {**changes, "end_of_text": dataset.tokenizer.end_of_text}
    check_cached_logits(dataset, build_tiny_config(dataset, arch, stages=3, model=model))


@torch.no_grad()
def check_cached_logits(dataset: Dataset, config: SwarmConfig) -> None:
    """Read a row in pieces, with random weights, since some parameters start at zero."""
    stages, whole = build_stages(config), build_model(config).eval()
    rng = torch.Generator().manual_seed(1)
    for name, parameter in whole.named_parameters():
        parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=0.05)
        for stage in stages:
            if name in stage.parameters:
                stage.parameters[name].copy_(parameter)
    tokens, _ = next(Batches(dataset, config).iter_dev(2))
    expected, caches = whole(tokens), [stage.build_cache() for stage in stages]
    for first, last in itertools.pairwise((0, 5, 6, 7, 11, 16)):
        hidden = None
        for stage, cache in zip(stages, caches, strict=True):
            hidden = stage.advance(tokens[:, first:last], hidden, cache)
        assert hidden is not None
        assert torch.allclose(hidden, expected[:, last - 1].float(), atol=1e-4)


def test_stage_with_loaded_state_continues_like_its_peer(dataset: Dataset) -> None:
    config = build_tiny_config(dataset)
    batches, stages = Batches(dataset, config), build_stages(config)
    list(train_stages(stages, batches, 2))
    newcomer = Stage(config, 1)
    untrained, (first, last) = newcomer.compute_digest(), (stage.copy_state() for stage in stages)
    with pytest.raises(StateError, match="has no weight"):
        newcomer.load_state(first, 3)
    with pytest.raises(StateError, match="another stage's"):
        newcomer.load_state({**first, **last}, 3)
    assert (newcomer.compute_digest(), newcomer.version) == (untrained, 0)
    newcomer.load_state(last, stages[1].version)
    assert newcomer.compute_digest() == stages[1].compute_digest() != untrained
    expected = list(train_stages(stages, batches, 2))
    stages[0].load_state(first, 2)
    assert list(train_stages([stages[0], newcomer], batches, 2)) == expected
    assert newcomer.compute_digest() == stages[1].compute_digest()


def test_unpartitionable_model_is_refused_with_reason(dataset: Dataset) -> None:
    for arch, change, reason in (
        ("nanogpt", {"tied_head": True}, "cannot share a tied head"),
        ("gpt", {"memory_rows": 50}, "memory_rows"),
    ):
        base = build_tiny_config(dataset, arch)
        with pytest.raises(PartitionError, match=reason):
            Stage(build_tiny_config(dataset, arch, model=base.model | change), 0)
    with pytest.raises(PartitionError, match="4 blocks cannot be partitioned into 5"):
        Stage(build_tiny_config(dataset, stages=5), 0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 20), st.data())
def test_balanced_blocks_minimize_the_largest_cost(costs: list[int], head: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    spans = balance_blocks(tuple(costs), head, stages)
    assert [block for span in spans for block in span] == list(range(len(costs)))
    assert all(spans)

    def find_costliest(cut: list[int]) -> int:
        ends = [0, *cut, len(costs)]
        sums = [sum(costs[a:b]) for a, b in itertools.pairwise(ends)]
        return max([*sums[:-1], sums[-1] + head])

    every = (find_costliest(list(cut)) for cut in itertools.combinations(range(1, len(costs)), stages - 1))
    assert find_costliest([span.start for span in spans[1:]]) == min(every)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(dataset: Dataset) -> SwarmConfig:
    return build_tiny_config(dataset)


@pytest.mark.parametrize("index", [0, 1])
def test_slots_follow_from_free_memory(config: SwarmConfig, index: int) -> None:
    stage = Stage(config, index)
    before = stage.compute_digest(stage.gradient_sum)
    slots = [plan_memory(stage, megabytes << 20).slots for megabytes in (0, 8, 16, 32)]
    assert stage.compute_digest(stage.gradient_sum) == before
    assert slots == sorted(slots)
    assert slots[-1] > 2 * slots[1]
    assert plan_memory(stage, 0) == MemoryPlan(1, 0), "at least one micro-batch"
    assert plan_memory(stage, 2**60) == MemoryPlan(MAX_SLOTS, MAX_CACHES)
    assert 1 <= plan_memory(stage).slots <= MAX_SLOTS


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=6), st.integers(1, 50))
def test_micro_batches_in_flight_are_limited_by_the_fewest_slots(slots: list[list[int]], limit: int) -> None:
    count = limit_in_flight(slots, limit)
    assert 1 <= count <= limit
    assert count == 1 or all(sum(peers) >= count for peers in slots)


# --- gradient sums ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peers", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mean_is_the_sum_in_the_order_of_the_peers(
    peers: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sum_exchange, "CHUNK_PARAMETERS", 100)
    torch.manual_seed(peers)
    sums = {f"peer-{number}": torch.randn(1003).to(dtype) for number in range(peers)}

    async def read(peer: str, chunk: range) -> Tensor:
        await asyncio.sleep(0)
        return sums[peer][chunk.start : chunk.stop]

    norms: dict[str, float] = {}
    mean = asyncio.run(sum_exchange.reduce_mean(sorted(sums), 1003, 8, read, norms))
    assert torch.equal(mean, sum(sums[peer].float() for peer in sorted(sums)) * (1 / 8))
    assert norms == pytest.approx({peer: float(total.double().square().sum()) for peer, total in sums.items()})


# --- updates ----------------------------------------------------------------------------------------------------------

SETTINGS = {"learning_rate": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95), "epsilon": 1e-8}


def test_update_is_bit_exact_ieee_754() -> None:
    """numpy computes each operation separately, too: any machine that follows the standard computes these weights."""
    torch.manual_seed(2)
    weight = torch.randn(1000)
    optimizer = AdamW({"w": weight}, frozenset({"w"}), **SETTINGS)
    w = weight.numpy().copy()
    average, square, one = np.zeros_like(w), np.zeros_like(w), np.float32
    for number in range(1, 6):
        gradient = torch.randn(1000)
        g, rate = gradient.numpy(), 0.01 * 0.7
        average = average * one(0.9) + g * one(1 - 0.9)
        square = square * one(0.95) + (g * g) * one(1 - 0.95)
        size = np.sqrt(square * one(1 / (1 - 0.95**number))) + one(1e-8)
        move = average * one(1 / (1 - 0.9**number)) / size * one(rate)
        w = w * one(1 - rate * 0.1) - move
        optimizer.step([gradient], 0.7, number)
        assert np.array_equal(weight.numpy(), w)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_step_has_the_rows_of_the_ordinary_trainer(dataset: Dataset) -> None:
    config = build_tiny_config(dataset)
    batches = Batches(dataset, config)
    loader = BlockLoader(dataset, "train", 4 * config.micro_batch, 16, config.seed)
    for step in range(5):
        inputs, targets = (
            torch.cat(half) for half in zip(*(batches.get_batch(step, m) for m in range(4)), strict=True)
        )
        assert all(map(torch.equal, (inputs, targets), loader.next_batch()))
        assert batches.count_targets(step) == targets.numel()


# --- a worker's part of a step, without a network ---------------------------------------------------------------------


@pytest.fixture
def batches(dataset: Dataset) -> Batches:
    return Batches(dataset, build_tiny_config(dataset, stages=1))


@pytest.fixture
def state(batches: Batches) -> WorkerState:
    state = WorkerState(batches.config)
    state.load_stage(1, 0, 0, None)
    return state


def accumulate(
    state: WorkerState, batches: Batches, micro_batch: int, step: int = 0, need: tuple[int, ...] = (0,)
) -> None:
    request = RunRequest(step=step, micro_batch=micro_batch, need=need, timeout=1)
    tokens, targets = batches.get_batch(step, micro_batch)
    state.run_backward(request, state.run_forward(request, tokens, None, targets), None)


def freeze_worker(state: WorkerState, held: tuple[int, ...], attempt: int = 2, step: int = 0) -> Prepare:
    request = Prepare(attempt=attempt, step=step, held=held, peers=("1" * 40,), timeout=1)
    state.freeze(request)
    state.hash_weights(request)
    return request


@contextmanager
def assert_refused(code: str) -> Iterator[None]:
    with pytest.raises(CallRefusedError) as error:
        yield
    assert error.value.code == code


def test_gradient_is_accumulated_once_and_only_if_needed(state: WorkerState, batches: Batches) -> None:
    accumulate(state, batches, 0)
    once = state.stage.gradient_sum.clone()
    accumulate(state, batches, 0)
    accumulate(state, batches, 1, need=())
    assert torch.equal(state.stage.gradient_sum, once)
    ledger = state.read_ledger(StepRequest(attempt=1, step=0))
    assert [held.micro_batch for held in ledger.held] == [0]
    assert ledger.held[0].targets == 32
    assert ledger.throughput > 0


def test_frozen_worker_refuses_gradients_until_unfrozen(state: WorkerState, batches: Batches) -> None:
    with assert_refused("stale"):
        accumulate(state, batches, 0, step=1)
    accumulate(state, batches, 0)
    with assert_refused("mismatch"):
        freeze_worker(state, (0, 1))
    assert state.frozen_attempt is None
    freeze_worker(state, (0,))
    before = state.stage.gradient_sum.clone()
    with assert_refused("frozen"):
        accumulate(state, batches, 1)
    assert torch.equal(state.stage.gradient_sum, before)
    state.read_ledger(StepRequest(attempt=3, step=0))
    accumulate(state, batches, 1)
    assert sorted(state.held) == [0, 1]


COMMIT = Commit(attempt=2, step=0, factor=1.0, clip_scale=1.0)


def test_commit_repeated_updates_once(state: WorkerState, batches: Batches) -> None:
    accumulate(state, batches, 0)
    vote = state.vote(freeze_worker(state, (0,)), state.snapshot * 0.5)
    assert vote.squared_norm > 0
    assert state.commit(COMMIT).step == 1
    position = state.get_position(PositionRequest(digest=True))
    assert state.commit(COMMIT).step == 1
    assert state.get_position(PositionRequest(digest=True)) == position
    assert not state.held
    assert not state.stage.gradient_sum.any()
    newcomer = WorkerState(batches.config)
    newcomer.load_stage(5, 0, 1, state.copy_state(StateRequest(stage=0, step=1)))
    assert newcomer.get_position(PositionRequest(digest=True)) == position


def test_commit_without_vote_in_attempt_is_refused(state: WorkerState, batches: Batches) -> None:
    accumulate(state, batches, 0)
    request = freeze_worker(state, (0,))
    with pytest.raises(CallRefusedError):
        state.commit(COMMIT)
    state.vote(request, state.snapshot * 0.5)
    state.read_ledger(StepRequest(attempt=3, step=0))
    with pytest.raises(CallRefusedError):
        state.commit(COMMIT)
    assert state.stage.version == 0
    with assert_refused("stale"):
        state.drop_step(StepRequest(attempt=2, step=0))
    assert sorted(state.held) == [0]
    state.drop_step(StepRequest(attempt=4, step=0))
    with pytest.raises(CallRefusedError):
        state.vote(request, torch.zeros_like(state.stage.gradient_sum))
    assert not state.held
    assert not state.stage.gradient_sum.any()


def read_text(state: WorkerState, name: str, start: int, tokens: int, step: int = 0) -> torch.Tensor:
    position = CachePosition(name=name * 16, start=start)
    request = RunRequest(step=step, micro_batch=0, mode="logits", timeout=1, cache=position)
    return state.advance(request, position, torch.arange(tokens)[None], None)


def test_worker_caches_only_as_many_texts_as_its_plan_allows(state: WorkerState) -> None:
    assert state.plan_memory() >= 1
    assert state.max_caches == MAX_CACHES
    state.max_caches = 2
    for name in "abc":
        read_text(state, name, 0, 5)
    assert read_text(state, "c", 5, 1).shape[0] == 1
    read_text(state, "b", 5, 1)
    with assert_refused("no_cache"):
        read_text(state, "a", 5, 1)
    state.caches.clear()
    state.max_caches = 0
    with assert_refused("no_memory"):
        read_text(state, "a", 0, 5)
    assert not state.caches
