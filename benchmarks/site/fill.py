"""Fills a database with scored, failed and training runs and their curves.

A few curves are stored as metrics of a node; the database copies them with offsets for the others. Prints the paths to
request.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import CaptureQueriesContext  # noqa: E402
from django.utils import timezone  # noqa: E402

from leaderboard.job_handlers import metrics  # noqa: E402
from leaderboard.models import CurvePoint, Entry, Run, Score, Season, Track  # noqa: E402
from scheduler.models import Event  # noqa: E402
from trainer.accounting.budget import Budget  # noqa: E402

BUDGET = "1e13flops"
SEEDS = 3
RUNGS = (0.125, 0.25, 0.5, 1, 2)
LIVE = 8
LONG = 20
LONG_STEPS = 19_000
"""Steps of the longest curves."""
TASKS = ("arc_easy/acc", "blimp/acc", "hellaswag/acc_norm", "lambada/acc", "piqa/acc", "sciq/acc", "winogrande/acc")


def create_track() -> Track:
    season = Season.objects.create(name="Season 1", corpus="fineweb-edu", tokenizer="gpt2", dataset_hash="9f2c" * 16)
    track = Track.objects.create(
        slug="small", name="Small", season=season, budget=BUDGET, expected_seconds=100.0, is_default=True, seeds=SEEDS,
        ladder={"rungs": list(RUNGS), "seeds": SEEDS}, description="Many small models.",
    )  # fmt: skip
    season.baseline = Entry.objects.create(
        track=track, kind="main", state="approved", title="main", repository="https://example.org/train.git",
        sha="0" * 40, architecture="gpt",
    )  # fmt: skip
    season.save()
    return track


def create_entries(track: Track, count: int) -> list[Entry]:
    return Entry.objects.bulk_create(
        [
            Entry(
                track=track, kind="architecture", state="approved", title=f"Idea {number}: gate the values",
                author=f"author-{number % 200}", repository="https://example.org/train.git", sha=f"{number + 1:040x}",
                architecture=f"idea{number % 40}", hypothesis="Gated attention.",
            )
            for number in range(count)
        ],
        batch_size=2000,
    )  # fmt: skip


def build_run(entry: Entry, seed: int, part: float, draw: random.Random, **fields: Any) -> Run:
    """Return an unsaved finished run. Its loss depends on the entry and the compute, with noise."""
    gain = 1.0 if entry.kind == Entry.Kind.MAIN else random.Random(entry.pk).uniform(0.7, 1.3)
    ended = timezone.now() - timedelta(minutes=draw.uniform(60, 500_000))
    loss = 2.0 - 0.1 * math.log(part * gain) + draw.gauss(0, 0.002)
    values = {
        "track": entry.track, "season": entry.track.season, "entry": entry, "seed": seed,
        "budget": BUDGET if part == 1 else str(Budget.parse(BUDGET).times(part)), "state": Run.State.FINISHED,
        "trust": Run.Trust.SCORED, "bits_per_byte": loss, "bits_per_byte_stderr": 0.007, "train_flops": 1e13 * part,
        "train_seconds": 100 * part, "node_class": "1 x H100", "node_name": "cellar", "parameters": 1_574_000,
        "fraction": 1, "step": 960, "revision": 40, "created_at": ended, "started_at": ended, "trained_at": ended,
        "finished_at": ended, "config": {"environment": {"python": "3.11.2"}, "train": {"batch": 8}},
    }  # fmt: skip
    return Run(**{**values, **fields})


def build_runs(track: Track, count: int, draw: random.Random) -> Iterator[Run]:
    baseline = track.season.baseline
    assert baseline is not None
    rungs = [(part, seed) for part in RUNGS for seed in range(1, SEEDS + 1)]
    yield from (build_run(baseline, seed, part, draw, purpose=Run.Purpose.LADDER) for part, seed in rungs)
    ended = {"bits_per_byte": None, "bits_per_byte_stderr": None, "trust": Run.Trust.PROVISIONAL}
    places = [
        (entry, seed)
        for entry in create_entries(track, math.ceil((count - len(rungs)) / SEEDS))
        for seed in range(100, 100 + SEEDS)
    ]
    for number, (entry, seed) in enumerate(places[: count - len(rungs)]):
        if number < LIVE:
            yield build_run(entry, seed, 1, draw, **ended, state=Run.State.TRAINING, fraction=0.5, finished_at=None)
        elif number % 10 == 0:
            yield build_run(entry, seed, 1, draw, **ended, state=Run.State.FAILED, reason="The loss became NaN.")
        else:
            yield build_run(entry, seed, 1, draw)


def build_metrics_row(kind: str, step: int, noise: random.Random) -> dict[str, Any]:
    loss = 2.9 + 3.6 * math.exp(-step / 9) + 2.6 * (1 + step / 40) ** -0.45 + noise.gauss(0, 0.07)
    return {
        "kind": kind, "step": step, "tokens": step * 2048, "flops": step * 1e10, "seconds": step * 0.1, "loss": loss,
        "learning_rate": 1e-3, "gradient_norm": abs(noise.gauss(1, 0.2)), "tokens_per_second": 20_000.0, "mfu": 0.4,
        "memory_bytes": 10**9, "fraction": 0.5, **({"bits_per_byte": loss / 2} if kind == "dev" else {}),
    }  # fmt: skip


def report_metrics(run: Run, steps: int, evaluations: int) -> None:
    """Store a curve as metrics of a node."""
    noise = random.Random(run.pk)
    rows = [build_metrics_row("train", step, noise) for step in range(1, steps + 1)]
    for start in range(0, steps, 200):
        metrics.store_metrics(run, rows[start : start + 200])
    every = max(steps // evaluations, 1)
    metrics.store_metrics(run, [build_metrics_row("dev", step, noise) for step in range(every, steps + 1, every)])
    Run.objects.filter(pk=run.pk).update(step=steps)


def copy_curve(template: Run, runs: Sequence[int]) -> None:
    """Copy the curve to other runs, each with an offset."""
    columns = [field.column for field in CurvePoint._meta.concrete_fields if field.column not in ("id", "run_id")]
    values = ["loss + mod(r.id, 997) * 1e-5" if name == "loss" else name for name in columns]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO leaderboard_curvepoint (run_id, {', '.join(columns)}) "  # noqa: S608
            f"SELECT r.id, {', '.join(values)} FROM unnest(%s) AS r(id), leaderboard_curvepoint WHERE run_id = %s",
            [list(runs), template.pk],
        )


def create_curves(runs: Sequence[Run], points: int) -> None:
    """Create this many points; the last `LONG` runs have long curves."""
    short, long = runs[:-LONG], runs[-LONG:]
    report_metrics(long[0], LONG_STEPS, 100)
    own = (points - LONG * CurvePoint.objects.filter(run=long[0]).count()) // len(short)
    templates = short[LIVE + 20 : LIVE + 24]
    for template in templates:
        report_metrics(template, own - 40, 40)
    with connection.schema_editor() as schema:  # built once at the end: much faster
        schema.remove_constraint(CurvePoint, CurvePoint._meta.constraints[0])
    copy_curve(long[0], [run.pk for run in long[1:]])
    Run.objects.filter(pk__in=[run.pk for run in long]).update(step=LONG_STEPS)
    others = [run.pk for run in short if run not in templates]
    for number, template in enumerate(templates):
        copy_curve(template, others[number :: len(templates)])
    with connection.schema_editor() as schema:
        schema.add_constraint(CurvePoint, CurvePoint._meta.constraints[0])


def count_queries(paths: dict[str, list[str]]) -> dict[str, int]:
    """Return the number of queries of each page for a visitor without an account."""
    counts = {}
    for name, addresses in paths.items():
        assert Client().get(addresses[0]).status_code == 200, addresses[0]
        with CaptureQueriesContext(connection) as captured:
            assert Client().get(addresses[-1]).status_code == 200, addresses[-1]
        counts[name] = len(captured)
    return counts


def build_paths(runs: Sequence[Run], draw: random.Random) -> dict[str, list[str]]:
    """Return the paths to request by kind of page."""
    numbers = [run.pk for run in runs if run.state == Run.State.FINISHED]
    some, long = draw.sample(numbers, min(400, len(numbers))), [run.pk for run in runs[-LONG:]]
    entry = {run.pk: run.entry_id for run in runs}
    return {
        "board, cached": ["/"],
        "board, uncached": [f"/?view={number}" for number in range(2000)],
        "board, sorted": [f"/?sort=-multiplier&page=2&view={number}" for number in range(2000)],
        "run": [f"/runs/{run}/" for run in some],
        "run, long curve": [f"/runs/{run}/?view={view}" for view in range(20) for run in long],
        "run, live.json": [f"/runs/{run}/live.json" for run in long],
        "entry": [f"/entries/{entry[run]}/" for run in some[:100]],
        "compare 2": [f"/compare/?runs={a},{b}" for a, b in pairwise(some)][:100],
        "compare 10": [f"/compare/?runs={','.join(map(str, draw.sample(some, 10)))}" for _ in range(100)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--points", type=int, required=True)
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    draw = random.Random(1)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off; SET maintenance_work_mem = '512MB'")
    runs = Run.objects.bulk_create(build_runs(create_track(), options.runs, draw), batch_size=2000)
    Score.objects.bulk_create(
        [
            Score(run=run, name=name, value=draw.uniform(0.2, 0.8), stderr=0.01, count=1000)
            for run in runs
            if run.state == Run.State.FINISHED
            for name in ("bits_per_byte", "nats_per_token", *TASKS)
        ],
        batch_size=5000,
    )
    Event.objects.bulk_create(
        [
            Event(actor="site", target_kind="run", target_id=run.pk, sentence=sentence, announced=True)
            for run in runs
            for sentence in ("It is queued.", "Training on cellar.", "Trained to the end.", "Scored on cellar.")
        ],
        batch_size=5000,
    )
    create_curves(runs, options.points)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    paths = build_paths(runs, draw)
    found = {
        "paths": paths, "live": [run.pk for run in runs if run.state == Run.State.TRAINING],
        "runs": len(runs), "points": CurvePoint.objects.count(), "queries": count_queries(paths),
    }  # fmt: skip
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
