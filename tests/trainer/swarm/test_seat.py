"""One worker's part of a step, without a network: what is added, what is refused, what is promised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.swarm_chain import tiny
from trainer.data.dataset import Dataset
from trainer.swarm.data import Batches
from trainer.swarm.frames import Refused
from trainer.swarm.seat import Seat
from trainer.swarm.wire import Ask, AskWhere, Commit, Prepare, Run


@pytest.fixture
def batches(dataset_folder: Path) -> Batches:
    dataset = Dataset.open(dataset_folder)
    return Batches(dataset, tiny(dataset, stages=1))


@pytest.fixture
def seat(batches: Batches) -> Seat:
    seat = Seat(batches.config)
    seat.take(1, 0, 0, None)
    return seat


def learn(seat: Seat, batches: Batches, micro_batch: int, step: int = 0, need: tuple[int, ...] = (0,)) -> None:
    ask = Run(step=step, micro_batch=micro_batch, need=need, patience=1)
    tokens, targets = batches.tokens(step, micro_batch)
    seat.finish(ask, seat.forward(ask, tokens, None, targets), None)


def promise(seat: Seat, held: tuple[int, ...], attempt: int = 2, step: int = 0) -> Prepare:
    ask = Prepare(attempt=attempt, step=step, held=held, peers=("1" * 40,), patience=1)
    seat.promise(ask)
    seat.weigh(ask)
    return ask


def code(error: pytest.ExceptionInfo[Refused]) -> str:
    return error.value.code


def test_a_micro_batch_counts_once_and_only_where_it_is_needed(seat: Seat, batches: Batches) -> None:
    learn(seat, batches, 0)
    once = seat.stage.total.clone()
    learn(seat, batches, 0)
    learn(seat, batches, 1, need=())
    assert torch.equal(seat.stage.total, once)
    ledger = seat.read(Ask(attempt=1, step=0))
    assert [held.micro_batch for held in ledger.held] == [0]
    assert ledger.held[0].targets == 32
    assert ledger.throughput > 0


def test_a_gradient_of_another_step_is_refused(seat: Seat, batches: Batches) -> None:
    with pytest.raises(Refused) as error:
        learn(seat, batches, 0, step=1)
    assert code(error) == "stale"


def test_who_has_promised_takes_no_more(seat: Seat, batches: Batches) -> None:
    learn(seat, batches, 0)
    promise(seat, (0,))
    before = seat.stage.total.clone()
    with pytest.raises(Refused) as error:
        learn(seat, batches, 1)
    assert code(error) == "frozen"
    assert torch.equal(seat.stage.total, before)
    seat.read(Ask(attempt=3, step=0))
    learn(seat, batches, 1)
    assert sorted(seat.held) == [0, 1]


def test_it_promises_only_what_it_holds(seat: Seat, batches: Batches) -> None:
    learn(seat, batches, 0)
    with pytest.raises(Refused) as error:
        promise(seat, (0, 1))
    assert code(error) == "mismatch"
    assert seat.promised is None


def test_the_update_is_made_once_however_often_it_is_asked_for(seat: Seat, batches: Batches) -> None:
    learn(seat, batches, 0)
    ask = promise(seat, (0,))
    vote = seat.vote(ask, seat.snapshot * 0.5)
    assert vote.squared_norm > 0
    order = Commit(attempt=2, step=0, factor=1.0, clip_scale=1.0)
    assert seat.commit(order).step == 1
    digest = seat.where(AskWhere(digest=True)).digest
    assert seat.commit(order).step == 1
    assert seat.where(AskWhere(digest=True)).digest == digest
    assert not seat.held
    assert not seat.stage.total.any()


def test_no_update_without_a_vote_in_that_attempt(seat: Seat, batches: Batches) -> None:
    learn(seat, batches, 0)
    ask = promise(seat, (0,))
    with pytest.raises(Refused):
        seat.commit(Commit(attempt=2, step=0, factor=1.0, clip_scale=1.0))
    seat.vote(ask, seat.snapshot * 0.5)
    seat.read(Ask(attempt=3, step=0))
    with pytest.raises(Refused):
        seat.commit(Commit(attempt=2, step=0, factor=1.0, clip_scale=1.0))
    assert seat.stage.version == 0


def test_a_vote_that_comes_after_a_newer_attempt_is_refused(seat: Seat, batches: Batches) -> None:
    learn(seat, batches, 0)
    ask = promise(seat, (0,))
    seat.drop(Ask(attempt=3, step=0))
    with pytest.raises(Refused):
        seat.vote(ask, torch.zeros_like(seat.stage.total))
    assert not seat.held
    assert not seat.stage.total.any()


def test_an_older_attempt_of_the_coordinators_changes_nothing(seat: Seat, batches: Batches) -> None:
    learn(seat, batches, 0)
    seat.read(Ask(attempt=9, step=0))
    with pytest.raises(Refused) as error:
        seat.drop(Ask(attempt=8, step=0))
    assert code(error) == "stale"
    assert sorted(seat.held) == [0]


def test_a_newcomer_with_another_ones_state_is_where_that_one_is(seat: Seat, batches: Batches) -> None:
    learn(seat, batches, 0)
    seat.vote(promise(seat, (0,)), seat.snapshot * 0.5)
    seat.commit(Commit(attempt=2, step=0, factor=1.0, clip_scale=1.0))
    newcomer = Seat(batches.config)
    newcomer.take(5, 0, 1, seat.state(0, 1))
    assert newcomer.where(AskWhere(digest=True)) == seat.where(AskWhere(digest=True))
