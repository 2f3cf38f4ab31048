"""Prefetched batches equal those of the loader."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.waits import WAIT_SECONDS
from trainer.data.dataset import Dataset
from trainer.data.loader import (
    PACKINGS,
    PREFETCH_BATCHES,
    Batch,
    LoaderState,
    PrefetchLoader,
    build_loader,
    load_packing,
)


@pytest.fixture
def dataset(dataset_folder: Any) -> Dataset:
    return Dataset.open(dataset_folder)


def take_batches(loading: Any, count: int) -> list[list[Any]]:
    return [[part.tolist() for part in loading.next_batch()] for _ in range(count)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_batches_and_states_equal_those_of_the_loader(dataset: Dataset, packing: str) -> None:
    alone = load_packing(packing)(dataset, "train", 3, 32, seed=1)
    first, second = (build_loader(dataset, "train", packing, 3, 32, seed=1) for _ in range(2))
    take_batches(second, 2)
    for _ in range(5):
        assert first.state_dict() == alone.state_dict()
        assert take_batches(first, 1) == take_batches(alone, 1)
    second.load_state_dict(first.state_dict())  # the threads have read more batches by now
    assert take_batches(first, 5) == take_batches(second, 5) == take_batches(alone, 5)
    assert first.state_dict() == second.state_dict()
    first.close()
    second.close()


class Counting:
    """A loader of consecutive numbers that raises an error at a batch."""

    waste = 0.0

    def __init__(self, broken: int = 1000) -> None:
        self.position, self.broken, self.read = 0, broken, threading.Semaphore(0)

    def next_batch(self) -> Batch:
        self.position += 1
        self.read.release()
        if self.position == self.broken:
            raise OSError(5, "Input/output error")
        return torch.tensor([self.position]), torch.tensor([self.position])

    def state_dict(self) -> LoaderState:
        return {"position": self.position}

    def load_state_dict(self, state: LoaderState) -> None:
        self.position = state["position"]


@pytest.fixture
def counting() -> Iterator[PrefetchLoader]:
    prefetched = PrefetchLoader(Counting())
    yield prefetched
    prefetched.close()


def test_batches_are_read_ahead(counting: PrefetchLoader) -> None:
    assert take_batches(counting, 1) == [[[1], [1]]]
    inner = counting._loader
    assert isinstance(inner, Counting)
    for _ in range(1 + PREFETCH_BATCHES):
        assert inner.read.acquire(timeout=WAIT_SECONDS)
    assert counting.state_dict() == {"position": 1}


def test_read_error_is_raised_by_its_batch() -> None:
    broken = PrefetchLoader(Counting(broken=3))
    assert take_batches(broken, 2) == [[[1], [1]], [[2], [2]]]
    with pytest.raises(OSError, match="Input/output error"):
        broken.next_batch()
    assert broken.state_dict() == {"position": 2}
    broken.close()


def test_close_ends_thread(counting: PrefetchLoader) -> None:
    counting.next_batch()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("loader")]
    counting.close()
    assert threads
    for thread in counting._reader._threads:
        assert not thread.is_alive()
