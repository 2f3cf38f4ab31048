"""Reading ahead changes nothing but the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trainer.data.dataset import Dataset
from trainer.data.loader import Batch, State
from trainer.data.prefetch import AHEAD, PACKINGS, Prefetched, loader


@pytest.fixture
def dataset(dataset_folder: Any) -> Dataset:
    return Dataset.open(dataset_folder)


def taken(loading: Any, count: int) -> list[list[Any]]:
    return [[part.tolist() for part in loading.next()] for _ in range(count)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_batches_and_places_are_those_of_the_loader_alone(dataset: Dataset, packing: str) -> None:
    alone = PACKINGS[packing](dataset, "train", 3, 32, seed=1)
    ahead = loader(dataset, "train", packing, 3, 32, seed=1)
    for _ in range(10):
        assert ahead.state() == alone.state()
        assert taken(ahead, 1) == taken(alone, 1)
    ahead.close()


@pytest.mark.parametrize("packing", PACKINGS)
def test_it_goes_on_behind_what_was_handed_out_not_what_was_read(dataset: Dataset, packing: str) -> None:
    first, second = (loader(dataset, "train", packing, 3, 32, seed=1) for _ in range(2))
    taken(first, 5)
    taken(second, 2)  # some more have been read by now
    second.restore(first.state())
    assert taken(first, 5) == taken(second, 5)
    assert first.state() == second.state()
    first.close()
    second.close()


class Counting:
    """A loader that counts, and breaks at a batch."""

    waste = 0.0

    def __init__(self, broken: int = 1000) -> None:
        self.position, self.broken, self.read = 0, broken, threading.Semaphore(0)

    def next(self) -> Batch:
        self.position += 1
        self.read.release()
        if self.position == self.broken:
            raise OSError(5, "Input/output error")
        return torch.tensor([self.position]), torch.tensor([self.position])

    def state(self) -> State:
        return {"position": self.position}

    def restore(self, state: State) -> None:
        self.position = state["position"]


@pytest.fixture
def counting() -> Iterator[Prefetched]:
    prefetched = Prefetched(Counting())
    yield prefetched
    prefetched.close()


def test_batches_wait_before_they_are_asked_for(counting: Prefetched) -> None:
    assert taken(counting, 1) == [[[1], [1]]]
    inner = counting._loader
    assert isinstance(inner, Counting)
    for _ in range(1 + AHEAD):
        assert inner.read.acquire(timeout=10)
    assert counting.state() == {"position": 1}


def test_what_goes_wrong_is_raised_where_its_batch_is_wanted() -> None:
    broken = Prefetched(Counting(broken=3))
    assert taken(broken, 2) == [[[1], [1]], [[2], [2]]]
    with pytest.raises(OSError, match="Input/output error"):
        broken.next()
    assert broken.state() == {"position": 2}
    broken.close()


def test_closing_ends_the_thread(counting: Prefetched) -> None:
    counting.next()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("loader")]
    counting.close()
    assert threads
    for thread in counting._reader._threads:
        assert not thread.is_alive()
