"""Scored runs compared by what each was asked."""

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
from tests.leaderboard.views.test_page_board import words
from tests.support import scene

pytestmark = pytest.mark.django_db


def scored(entry: Entry, seed: int, content: bytes | None) -> Run:
    run = scene.run(entry, seed=seed, state=Run.State.FINISHED, bits_per_byte=2.0)
    run.score_job = scene.job(run)
    run.save()
    Score.objects.create(run=run, name="bits_per_byte", value=2.0, stderr=0.01)
    if content is not None:
        JobFile.objects.create(job=run.score_job, path=paired_comparison.ITEMS, blob=storage.store_bytes(content))
    return run


def answers(worse: float, seed: int, documents: int = 60) -> bytes:
    """Documents of many sizes, each `worse` times its bits, with a little of the run's own noise."""
    dice, lines = Random(seed), []
    for i in range(documents):
        size = Random(i).randint(200, 4000)
        bits = size * 2 * (1 + Random(i).gauss(0, 0.2)) * worse * (1 + dice.gauss(0, 0.002))
        lines.append({"task": "bits_per_byte", "item": i, "bits": bits, "bytes": size})
    return gzip.compress("\n".join(json.dumps(line) for line in lines).encode())


@pytest.fixture
def entry(site: Any) -> Entry:
    return scene.entry(scene.track(), "main")


def test_a_small_difference_is_clear_where_the_same_documents_are_hard_for_both(client: Client, entry: Entry) -> None:
    runs = [scored(entry, 1, answers(1.0, 1)), scored(entry, 2, answers(1.01, 2)), scored(entry, 3, answers(1.0, 3))]

    worse, same = paired_comparison.compare_with_first(runs)

    (difference,) = worse.clear
    assert difference.low > 0
    assert same.clear == []
    address = f"/compare/?runs={','.join(str(run.pk) for run in runs)}"
    assert "item by item" in words(client.get(address).content)
    assert "1 of 1 differ by more than chance" in words(client.get(f"{address}&paired=1").content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "left no answers to single items"),
        (b"no archive", "does not hold the items"),
        (gzip.compress(b'{"task": "bits_per_byte", "item": 0}', mtime=0), "cannot be read"),
        (gzip.compress(b'{"task": "other", "item": 0, "acc": 1}', mtime=0), "no item in common"),
        (gzip.compress(b" " * (8 * paired_comparison.MOST_BYTES + 1), mtime=0), "unpacks to more"),
    ],
)
def test_answers_that_cannot_be_compared_are_said_to_be_so(entry: Entry, content: bytes | None, says: str) -> None:
    first, second = scored(entry, 1, answers(1.0, 1)), scored(entry, 2, content)

    (against,) = paired_comparison.compare_with_first([first, second])

    assert says in against.problem
    assert against.differences == []
