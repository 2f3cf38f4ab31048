"""Rows that begin with a document: full, reproducible, with a count of the cropped tokens."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.dataset import Dataset, prepare_dataset
from trainer.data.loader import Batch, shuffle_positions
from trainer.data.packing import BestFitPacker, DocumentLoader, estimate_waste, find_document_starts

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
def test_load_state_dict_resumes_exactly(lengths: list[int], size: int, before: int) -> None:
    packing, resumed = packer(lengths, size), packer(lengths, size)
    for _ in range(before):
        packing.next_row()
    resumed.load_state_dict(json.loads(json.dumps(packing.state_dict())))
    assert [packing.next_row() for _ in range(10)] == [resumed.next_row() for _ in range(10)]
    assert packing.state_dict() == resumed.state_dict()


def test_waste_counts_only_tails_of_documents_longer_than_rows() -> None:
    assert estimate_waste(np.full(50, 32), 32, seed=0) == 0
    assert estimate_waste(np.full(50, 40), 32, seed=0) == pytest.approx(8 / 40)
    assert estimate_waste(np.full(50, 8), 32, seed=0) == 0


# --- on tokens --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare_dataset("python-docs", "bpe:512", tmp_path_factory.mktemp("data") / "dataset", 60_000)


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
