"""Compares scored runs item by item: a paired bootstrap over documents and questions (`items.jsonl.gz`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.cache import cache

from leaderboard.models import Run
from scheduler import storage
from scheduler.models import Blob, JobFile
from trainer.scoring import items, paired_bootstrap

ITEMS = "items.jsonl.gz"
MAX_RUNS = 4
MAX_BYTES = 8 * 2**20
"""Compressed size of a file. Its content may be eight times as large."""
KEPT_SECONDS = 86_400
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class PairedComparison:
    """A run compared with the first one."""

    run: Run
    differences: list[paired_bootstrap.MetricDifference]
    problem: str = ""

    @property
    def significant(self) -> list[paired_bootstrap.MetricDifference]:
        return [difference for difference in self.differences if difference.p < SIGNIFICANCE_LEVEL]


def compare_with_first(runs: Sequence[Run]) -> list[PairedComparison]:
    runs = runs[:MAX_RUNS]
    jobs = {run.score_job_id: run.pk for run in runs if run.score_job_id}
    files = JobFile.objects.filter(job__in=list(jobs), path=ITEMS).select_related("blob")
    blobs = {jobs[file.job_id]: file.blob for file in files}
    return [compare_pair(runs[0], run, blobs) for run in runs[1:]]


def compare_pair(first: Run, second: Run, blobs: dict[int, Blob]) -> PairedComparison:
    for run in (first, second):
        if run.pk not in blobs:
            return PairedComparison(second, [], f"Run {run.pk} left no answers to single items.")
    one, two = blobs[first.pk], blobs[second.pk]
    key = f"paired:{one.sha256[:32]}:{two.sha256[:32]}"
    differences: list[paired_bootstrap.MetricDifference] | None = cache.get(key)
    if differences is None:
        try:
            differences = paired_bootstrap.compare_items(load_items(one), load_items(two))
        except (items.ItemsError, paired_bootstrap.NoCommonItemsError) as error:
            return PairedComparison(second, [], str(error))
        cache.set(key, differences, KEPT_SECONDS)
    return PairedComparison(second, differences)


def load_items(blob: Blob) -> dict[items.ItemKey, dict[str, Any]]:
    if blob.size > MAX_BYTES:
        raise items.ItemsError(f"The answers are {blob.size:,} bytes: compare them with `dailytrain compare`.")
    with storage.open_blob(blob) as file:
        return items.parse_items(file, ITEMS, 8 * MAX_BYTES)
