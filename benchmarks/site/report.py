"""Reports a training step for each line of its input; prints the time when it was stored."""

from __future__ import annotations

import json
import random
import sys
import time

import django

django.setup()

from benchmarks.site.fill import build_metrics_row, report_metrics  # noqa: E402
from leaderboard.job_handlers import metrics  # noqa: E402
from leaderboard.models import Run  # noqa: E402


def main() -> None:
    finished = Run.objects.filter(state=Run.State.FINISHED).order_by("pk")
    first, last = finished[0], finished.reverse()[0]
    run = Run.objects.create(
        entry=last.entry, track=last.track, season=last.season, budget="9s", seed=9, state=Run.State.TRAINING
    )
    report_metrics(run, 1000, 10)
    pages = {"board": "/", "entry": last.entry.get_absolute_url(), "run": last.get_absolute_url()}
    pages |= {"compare": f"/compare/?runs={first.pk},{last.pk}", "calendar": "/calendar/", "queue": "/queue/"}
    print(json.dumps({"run": run.pk, "pages": pages}), flush=True)  # noqa: T201
    for step in sys.stdin:
        metrics.store_metrics(run, [build_metrics_row("train", int(step), random.Random(1))])
        print(time.time(), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
