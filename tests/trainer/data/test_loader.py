"""Batches are permutations of the data or rows of documents, are read ahead, and resume exactly after errors."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.checkpoint.files import get_checkpoint_step
from trainer.checkpoint.store import find_latest_checkpoint
from trainer.data import loader
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.data.loader import (
    PACKINGS,
    Batch,
    BlockLoader,
    build_loader,
    iterate_in_order,
    load_packing,
    permute,
    shuffle_positions,
)
from trainer.data.packing import BestFitPacker, DocumentLoader, find_document_starts
from trainer.data.shards import TokenStream
from trainer.errors import RESUME_HINT, DatasetError


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare_dataset("python-docs", "bpe:512", tmp_path_factory.mktemp("data") / "dataset", 60_000)


def batches(loader: Any, count: int) -> Iterator[list[list[int]]]:
    for _ in range(count):
        inputs, targets = loader.next_batch()
        yield torch.cat([inputs, targets], dim=1).tolist()


@settings(deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(-(2**40), 2**80))
def test_permutation_visits_every_number_once(size: int, seed: int) -> None:
    assert sorted(permute(np.arange(size), size, seed)) == list(range(size))


def test_permutation_values_are_pinned() -> None:
    assert permute(np.arange(10), 10, seed=1).tolist() == [8, 2, 6, 1, 9, 3, 5, 4, 7, 0]
    assert permute(np.arange(3), 10**12, seed=1).tolist() == [478862412658, 162999050086, 552630369289]


@settings(deadline=None)
@given(
    before=st.integers(0, 60), batch=st.integers(1, 9), length=st.sampled_from([40, 111]), seed=st.integers(0, 2**63)
)
def test_load_state_dict_resumes_exactly(dataset: Dataset, before: int, batch: int, length: int, seed: int) -> None:
    loader = BlockLoader(dataset, "dev", batch, length, seed)
    for _ in range(before):
        loader.next_batch()
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = BlockLoader(dataset, "dev", batch, length, seed)
    resumed.load_state_dict(state)
    assert list(batches(loader, 5)) == list(batches(resumed, 5))
    assert loader.state_dict() == resumed.state_dict()
    inputs, targets = loader.next_batch()
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@settings(deadline=None)
@given(batch=st.integers(1, 7), epochs=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_epoch_visits_each_block_once_in_an_own_order(dataset: Dataset, batch: int, epochs: int, seed: int) -> None:
    loader = BlockLoader(dataset, "dev", batch, length=50, seed=seed)
    # So many batches are whole epochs for any batch size. Some batches cross the end of an epoch.
    rows = [tuple(row) for batch_rows in batches(loader, epochs * loader.blocks) for row in batch_rows]
    orders = [rows[epoch * loader.blocks : (epoch + 1) * loader.blocks] for epoch in range(epochs * batch)]
    assert all(Counter(order) == Counter(orders[0]) for order in orders)
    assert all(order != orders[0] for order in orders[1:])


@pytest.mark.parametrize("packing", PACKINGS)
def test_ranks_together_read_the_batches_of_one(dataset: Dataset, packing: str) -> None:
    load = load_packing(packing)
    alone = load(dataset, "train", 6, 100, seed=1)
    ranks = [load(dataset, "train", 2, 100, seed=1, rank=rank, ranks=3) for rank in range(3)]
    for _ in range(40):
        together = [row for rank in ranks for row in next(batches(rank, 1))]
        assert together == next(batches(alone, 1))
    assert all(rank.state_dict() == alone.state_dict() for rank in ranks)


@pytest.mark.parametrize(
    ("packing", "change"),
    [(packing, change) for packing in PACKINGS for change in ({"seed": 2}, {"length": 99})]
    + [("blocks", {"blocks": 3}), ("documents", {"documents": 3})],
)
def test_state_of_other_data_is_rejected(dataset: Dataset, packing: str, change: dict[str, int]) -> None:
    loader = load_packing(packing)(dataset, "train", 4, 100, seed=1)
    with pytest.raises(DatasetError, match=f"has {next(iter(change))}"):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_iterate_in_order_covers_split_without_overlap(dataset: Dataset) -> None:
    stream, length = dataset.open_stream("dev"), 30
    passes = list(iterate_in_order(dataset, "dev", batch=4, length=length))
    rows = [row for inputs, _ in passes for row in inputs.tolist()]
    assert [token for row in rows for token in row] == stream.read_tokens(0, len(rows) * length).tolist()
    assert len(rows) == (len(stream) - 1) // length
    assert all(torch.equal(inputs[:, 1:], targets[:, :-1]) for inputs, targets in passes)
    assert sum(len(inputs) for inputs, _ in iterate_in_order(dataset, "dev", batch=4, length=length, limit=5)) == 5


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), data=st.data())
def test_stream_over_shards_equals_one_array(sizes: list[int], data: st.DataObject) -> None:
    whole = np.arange(sum(sizes), dtype=np.uint16)
    stream = TokenStream(np.split(whole, np.cumsum(sizes)[:-1]))
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert len(stream) == len(whole)
    assert stream.read_tokens(start, stop - start).tolist() == whole[start:stop].tolist()


# --- reading ahead ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_dataset(dataset_folder: Any) -> Dataset:
    return Dataset.open(dataset_folder)


def take_batches(loading: Any, count: int) -> list[list[Any]]:
    return [[part.tolist() for part in loading.next_batch()] for _ in range(count)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_batches_and_states_equal_those_of_the_loader(tiny_dataset: Dataset, packing: str) -> None:
    alone = load_packing(packing)(tiny_dataset, "train", 3, 32, seed=1)
    first, second = (build_loader(tiny_dataset, "train", packing, 3, 32, seed=1) for _ in range(2))
    take_batches(second, 2)
    for _ in range(5):
        assert first.state_dict() == alone.state_dict()
        assert take_batches(first, 1) == take_batches(alone, 1)
    second.load_state_dict(first.state_dict())  # the threads have read more batches by now
    assert take_batches(first, 5) == take_batches(second, 5) == take_batches(alone, 5)
    assert first.state_dict() == second.state_dict()
    first.close()
    second.close()


# --- errors in the thread that reads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), f"Out of memory: free some memory. {RESUME_HINT}"),
        (OSError(5, "Input/output error"), "cannot be read (Input/output error): delete the folder"),
    ],
)
def test_read_error_during_training_exits_in_one_line(
    error: Exception,
    sentence: str,
    train: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where: list[str] = []

    class FailingLoader(BlockLoader):
        def next_batch(self) -> Batch:
            if self.position < 15 * self.batch:
                return super().next_batch()
            where.append(threading.current_thread().name)
            with mock.patch.object(os, "pread", side_effect=error):
                return super().next_batch()

    with monkeypatch.context() as broken:
        broken.setattr(loader, "load_packing", lambda _: FailingLoader)
        assert train(tmp_path, "--budget", "30steps", "--checkpoint-every", "10steps") == 1
    assert where[0].startswith("loader"), "the error was not in the thread"
    errors = capsys.readouterr().err
    assert sentence in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "failure.json").read_text())["cause"] == "infrastructure"
    newest = find_latest_checkpoint(tmp_path)
    assert newest is not None
    assert get_checkpoint_step(newest) == 10


# --- rows that begin with a document ----------------------------------------------------------------------------------


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def packer(lengths: list[int], size: int, seed: int = 0, choice: int = 6) -> BestFitPacker:
    return BestFitPacker(np.array(lengths), size, seed, choice)


def pack_simply(lengths: list[int], size: int, seed: int, choice: int, rows: int) -> list[list[tuple[int, int]]]:
    """The packing rule in its simplest form, for comparison."""
    order = (int(shuffle_positions(np.array([ticket]), len(lengths), seed)[0]) for ticket in itertools.count())
    waiting: list[int] = []
    made = []
    for _ in range(rows):
        row: list[tuple[int, int]] = []
        while (room := size - sum(taken for _, taken in row)) > 0:
            waiting += [next(order) for _ in range(min(choice, len(lengths)) - len(waiting))]
            fitting = [document for document in waiting if lengths[document] <= room]
            if not row:
                chosen = waiting[0]
            elif fitting:
                chosen = max(fitting, key=lambda document: lengths[document])
            else:
                shortest = min(lengths[document] for document in waiting)
                # Of equally short documents the newest is cropped: the others may still fit whole.
                chosen = [document for document in waiting if lengths[document] == shortest][-1]
            if row and not fitting:
                waiting.reverse()
                waiting.remove(chosen)
                waiting.reverse()
            else:
                waiting.remove(chosen)
            row.append((chosen, min(lengths[chosen], room)))
        made.append(row)
    return made


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, size=st.integers(1, 50), seed=st.integers(0, 2**40), choice=st.integers(1, 12))
def test_rows_equal_reference_implementation(lengths: list[int], size: int, seed: int, choice: int) -> None:
    packing = packer(lengths, size, seed, choice)
    rows = [packing.next_row() for _ in range(8)]
    assert rows == pack_simply(lengths, size, seed, choice, 8)
    assert packing.served == sum(lengths[document] for row in rows for document, _ in row)
    assert packing.served - packing.cropped == 8 * size


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, size=st.integers(1, 50), before=st.integers(0, 40))
def test_packer_load_state_dict_resumes_exactly(lengths: list[int], size: int, before: int) -> None:
    packing, resumed = packer(lengths, size), packer(lengths, size)
    for _ in range(before):
        packing.next_row()
    resumed.load_state_dict(json.loads(json.dumps(packing.state_dict())))
    assert [packing.next_row() for _ in range(10)] == [resumed.next_row() for _ in range(10)]
    assert packing.state_dict() == resumed.state_dict()


# --- on tokens --------------------------------------------------------------------------------------------------------


def get_rows(batch: Batch) -> list[list[int]]:
    """Return rows of T + 1 tokens: inputs and the last target."""
    inputs, targets = batch
    return [[*ins, outs[-1]] for ins, outs in zip(inputs.tolist(), targets.tolist(), strict=True)]


def test_row_begins_with_a_document(dataset: Dataset) -> None:
    stream, end = dataset.open_stream("train"), dataset.tokenizer.end_of_text
    places = [*find_document_starts(stream, end).tolist(), len(stream)]
    whole = [tuple(stream.read_tokens(a, b - a).tolist()) for a, b in itertools.pairwise(places)]
    assert len(whole) == dataset.manifest["splits"]["train"]["documents"]
    beginnings = {document[: n + 1] for document in whole for n in range(min(len(document), 65))}
    loading = DocumentLoader(dataset, "train", 4, 64, seed=1)
    for _ in range(20):
        for row in get_rows(loading.next_batch()):
            assert row[0] == end
            cuts = [place for place, token in enumerate(row) if token == end] + [len(row)]
            parts = [tuple(row[a:b]) for a, b in itertools.pairwise(cuts)]
            assert all(part in beginnings for part in parts)
            # All documents but the last are complete.
            assert all(part in whole for part in parts[:-1])


def test_run_reports_waste(train: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", "--train.packing", "documents", "--budget", "1steps") == 0
    packing = json.loads((tmp_path / "run" / "run.json").read_text())["packing"]
    assert packing["kind"] == "documents"
    assert 0 < packing["waste"] < 1
    assert f"{packing['waste']:.1%} of the tokens" in capsys.readouterr().err
