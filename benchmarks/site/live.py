"""Writes metrics of runs every second, and an event now and then, while pages are requested.

Prints a line when it starts, and runs until its input ends. Then prints the number of rows and the time per second.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time

import django

django.setup()

from benchmarks.site.fill import build_metrics_row  # noqa: E402
from leaderboard.job_handlers import metrics  # noqa: E402
from leaderboard.models import Run  # noqa: E402
from scheduler.models import Event  # noqa: E402

ROWS = 10
"""Steps a second of each run."""
EVENT_SECONDS = 5
"""Interval of events, which invalidate pages."""


def main() -> None:
    runs = list(Run.objects.filter(pk__in=json.loads(sys.stdin.readline())))
    steps, noise, took, rounds = 1000, random.Random(1), 0.0, 0
    print("writing", flush=True)  # noqa: T201
    while not select.select([sys.stdin], [], [], max(0.0, 1 - took))[0]:
        began = time.perf_counter()
        for run in runs:
            metrics.store_metrics(run, [build_metrics_row("train", step, noise) for step in range(steps, steps + ROWS)])
        if rounds % EVENT_SECONDS == 0:
            Event.record("node:cellar", runs[0], f"Saved a checkpoint at step {steps}.")
        steps, rounds, took = steps + ROWS, rounds + 1, time.perf_counter() - began
    statistics = {"runs": len(runs), "rows": rounds * ROWS * len(runs), "ms_of_each_second": round(took * 1000)}
    print(json.dumps(statistics))  # noqa: T201


if __name__ == "__main__":
    main()
