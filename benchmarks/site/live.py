"""Runs that go on while pages are asked for: metrics every second for each of them, and a change of state now and then.

Says that it begins, and goes on until its input ends; then prints how many rows it wrote and what a second of it took.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time

import django

django.setup()

from benchmarks.site.fill import line  # noqa: E402
from leaderboard.job_handlers import metrics  # noqa: E402
from leaderboard.models import Run  # noqa: E402
from scheduler.models import Event  # noqa: E402

ROWS = 10
"""Steps a second of each run."""
EVENT_SECONDS = 5
"""A checkpoint here, a lease there: each is an event, and makes every page look again."""


def main() -> None:
    runs = list(Run.objects.filter(pk__in=json.loads(sys.stdin.readline())))
    steps, noise, took, rounds = 1000, random.Random(1), 0.0, 0
    print("writing", flush=True)  # noqa: T201
    while not select.select([sys.stdin], [], [], max(0.0, 1 - took))[0]:
        began = time.perf_counter()
        for run in runs:
            metrics.store(run, [line("train", step, noise) for step in range(steps, steps + ROWS)])
        if rounds % EVENT_SECONDS == 0:
            Event.record("node:cellar", runs[0], f"A checkpoint was kept at step {steps}.")
        steps, rounds, took = steps + ROWS, rounds + 1, time.perf_counter() - began
    told = {"runs": len(runs), "rows": rounds * ROWS * len(runs), "ms_of_each_second": round(took * 1000)}
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main()
