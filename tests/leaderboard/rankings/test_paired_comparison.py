"""Paired comparison of scored runs, item by item."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import Any

import pytest
from django.test import Client

from leaderboard.models import Entry, Run, Score
from leaderboard.rankings import paired_comparison
from scheduler import storage
from scheduler.models import JobFile
from tests.leaderboard.views.test_page_board import extract_text
from tests.support import scene

pytestmark = pytest.mark.django_db


def create_scored_run(entry: Entry, seed: int, content: bytes | None) -> Run:
    run = scene.create_run(entry, seed=seed, state=Run.State.FINISHED, bits_per_byte=2.0)
    run.score_job = scene.create_job(run)
    run.save()
    Score.objects.create(run=run, name="bits_per_byte", value=2.0, stderr=0.01)
    if content is not None:
        JobFile.objects.create(job=run.score_job, path=paired_comparison.ITEMS, blob=storage.store_bytes(content))
    return run


def build_items(worse: float, seed: int, documents: int = 60) -> bytes:
    """Return documents of many sizes, each with `worse` times its bits and some noise of the run."""
    rng, items = Random(seed), []
    for i in range(documents):
        size = Random(i).randint(200, 4000)
        bits = size * 2 * (1 + Random(i).gauss(0, 0.2)) * worse * (1 + rng.gauss(0, 0.002))
        items.append({"task": "bits_per_byte", "item": i, "bits": bits, "bytes": size})
    return gzip.compress("\n".join(json.dumps(item) for item in items).encode())


@pytest.fixture
def entry(site: Any) -> Entry:
    return scene.create_entry(scene.create_track(), "main")


def test_paired_comparison_of_same_documents_finds_small_difference(client: Client, entry: Entry) -> None:
    runs = [
        create_scored_run(entry, 1, build_items(1.0, 1)),
        create_scored_run(entry, 2, build_items(1.01, 2)),
        create_scored_run(entry, 3, build_items(1.0, 3)),
    ]

    worse, same = paired_comparison.compare_with_first(runs)

    (difference,) = worse.significant
    assert difference.low > 0
    assert same.significant == []
    address = f"/compare/?runs={','.join(str(run.pk) for run in runs)}"
    assert "item by item" in extract_text(client.get(address).content)
    assert "1 of 1 differ by more than chance" in extract_text(client.get(f"{address}&paired=1").content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "left no answers to single items"),
        (b"no archive", "does not hold the items"),
        (gzip.compress(b'{"task": "bits_per_byte", "item": 0}', mtime=0), "does not hold the items"),
        (gzip.compress(b'{"task": "other", "item": 0, "acc": 1}', mtime=0), "no item in common"),
        (gzip.compress(b" " * (8 * paired_comparison.MAX_BYTES + 1), mtime=0), "unpacks to more"),
    ],
)
def test_paired_comparison_of_invalid_items_gives_problem(entry: Entry, content: bytes | None, message: str) -> None:
    first, second = create_scored_run(entry, 1, build_items(1.0, 1)), create_scored_run(entry, 2, content)

    (comparison,) = paired_comparison.compare_with_first([first, second])

    assert message in comparison.problem
    assert comparison.differences == []
