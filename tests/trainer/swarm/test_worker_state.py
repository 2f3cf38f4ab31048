"""A worker's part of a step, without a network: accumulation, refusals, freezing, votes and updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm.buffers import MAX_CACHES
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
from trainer.swarm.worker_state import WorkerState


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
