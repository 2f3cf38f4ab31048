"""Example rows of a board during a night, for tests of pages.

Curves follow a power law with noise, as real ones do.
"""

from __future__ import annotations

import math
import random
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from leaderboard.models import Confirmation, CurvePoint, Entry, Run, Sample, Score, Season, Track
from scheduler.models import Blob, Event, Job, Lease, LogChunk, Node
from tests.support import campaign_scene

SHA = "5d0a1c7be2f94c638b1f7e0a9d3c2b4f6e8a1c3d"
TOKENS_PER_STEP = 2048
SECONDS_PER_STEP = 0.2


def create_track(**fields: Any) -> Track:
    season = Season.objects.create(
        name="Season 1",
        corpus="python-docs",
        tokenizer="bpe:8192",
        limit_bytes=16 * 2**20,
        dataset_hash="9f2c" * 16,
    )
    values = {
        "slug": "three-minutes",
        "name": "Three minutes on a CPU",
        "season": season,
        "budget": "180s",
        "expected_seconds": 180.0,
        "description": "Small models, one processor, three minutes.",
        "is_default": True,
        "nightly": True,
        "is_traced": False,
    }
    return Track.objects.create(**{**values, **fields})


def create_entry(track: Track, title: str, architecture: str = "gpt", **fields: Any) -> Entry:
    values = {
        "kind": Entry.Kind.ARCHITECTURE,
        "state": Entry.State.APPROVED,
        "author": "mira",
        "repository": "https://github.com/the-daily-train/the-daily-train.git",
        "sha": SHA,
    }
    return Entry.objects.create(track=track, title=title, architecture=architecture, **{**values, **fields})


def confirm_record(entry: Entry) -> None:
    """Record that the entry's confirmation runs broke the record of its season."""
    Confirmation.objects.create(entry=entry, season=entry.track.season, outcome=Confirmation.Outcome.RECORD)


def create_run(entry: Entry, **fields: Any) -> Run:
    values = {"track": entry.track, "season": entry.track.season, "budget": entry.track.budget, "seed": 1}
    new_run = Run.objects.create(entry=entry, **{**values, **fields})
    if new_run.state == Run.State.QUEUED and new_run.job is None:
        new_run.job = create_job(new_run, state=Job.State.QUEUED)
        new_run.save()
    return new_run


def create_job(run: Run, **fields: Any) -> Job:
    """Create the queue's job of a run."""
    release, _ = Blob.objects.get_or_create(sha256="ab" * 32, defaults={"size": 100_000})
    known = {"author": run.entry.author, "expected_seconds": run.expected_seconds, "track": run.track.slug}
    return Job.objects.create(kind="train", release=release, **{**known, **fields})


def compute_loss(step: int, noise: random.Random) -> float:
    return 2.9 + 3.6 * math.exp(-step / 9) + 2.6 * (1 + step / 40) ** -0.45 + noise.gauss(0, 0.07)


def build_metrics(step: int) -> dict[str, Any]:
    """Return the metrics that training reports beside the loss."""
    return {
        "learning_rate": 0.02 * min(1, step / 20),
        "gradient_norm": 0.5 + 5 * math.exp(-step / 30) + 0.05 * math.sin(step),
        "tokens_per_second": 10_240.0 + 200 * math.sin(step / 9),
        "memory_bytes": 1_300_000_000,
    }


def insert_points(run: Run, rows: list[dict[str, Any]]) -> None:
    """Insert points without models: `bulk_create` takes four times as long, and a night has 3,000 points."""
    fields = [field for field in CurvePoint._meta.concrete_fields if not field.primary_key]
    defaults = {field.name: field.get_default() for field in fields} | {"run": run.pk}
    values = [tuple((defaults | row).values()) for row in rows]
    quote = connection.ops.quote_name
    columns = ", ".join(quote(field.column) for field in fields)
    insert = f"INSERT INTO {quote(CurvePoint._meta.db_table)} ({columns}) VALUES ({', '.join(['%s'] * len(fields))})"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.executemany(insert, values)


def add_curve_points(run: Run, first: int, last: int) -> None:
    """Add a curve's points and bring the run up to date with them, as the metrics of a node do."""
    noise = random.Random(run.pk * 1000 + first)
    common = [
        {"step": s, "tokens": s * TOKENS_PER_STEP, "flops": s * 4.1e10, "seconds": s * SECONDS_PER_STEP}
        for s in range(first, last + 1)
    ]
    rows = [
        {"series": "train", "loss": compute_loss(row["step"], noise), **row, **build_metrics(row["step"])}
        for row in common
    ]
    rows += [
        {"series": "dev", "loss": loss, "bits_per_byte": loss * 0.47, **row}
        for row in common
        if row["step"] % 150 == 0
        for loss in [compute_loss(row["step"], random.Random(0)) + 0.05]
    ]
    insert_points(run, rows)
    Run.objects.filter(pk=run.pk).update(
        step=last,
        tokens=last * TOKENS_PER_STEP,
        seconds=last * SECONDS_PER_STEP,
        fraction=min(last * SECONDS_PER_STEP / run.track.expected_seconds, 1),
        loss=rows[last - first]["loss"],
        revision=run.revision + last,
    )
    run.refresh_from_db()


def create_node(name: str = "this-machine", **fields: Any) -> Node:
    values = {
        "state": Node.State.ONLINE,
        "trusted": True,
        "labels": ["cpu"],
        "hardware": {"cpus": 8, "memory_bytes": 16 * 2**30, "gpus": [], "sandboxes": ["bubblewrap"]},
        "last_seen": timezone.now(),
    }
    return Node.objects.create(name=name, **{**values, **fields})


def create_lease(run: Run, node: Node) -> Lease:
    """Create a job of the run and an active lease of the node on it."""
    run_job = create_job(run, state=Job.State.LEASED)
    Run.objects.filter(pk=run.pk).update(job=run_job, node_name=node.name, node_class="cpu, 8 cores")
    run.refresh_from_db()
    return Lease.objects.create(
        job=run_job, node=node, attempt=1, token_hash=f"{run_job.pk:064x}", phase="running", seconds=run.seconds,
        expires_at=timezone.now() + timedelta(minutes=1),
    )  # fmt: skip


def create_scored_run(entry: Entry, bits_per_byte: float, stderr: float, steps: int = 900, **fields: Any) -> Run:
    now = timezone.now()
    values = {
        "state": Run.State.FINISHED,
        "trust": Run.Trust.SCORED,
        "bits_per_byte": bits_per_byte,
        "bits_per_byte_stderr": stderr,
        "parameters": 3_410_432,
        "train_flops": 3.7e13,
        "train_seconds": 180.0,
        "node_name": "this-machine",
        "node_class": "cpu, 8 cores",
        "started_at": now - timedelta(hours=20, minutes=4),
        "trained_at": now - timedelta(hours=20, minutes=1),
        "finished_at": now - timedelta(hours=20),
        "checks": {
            "look_ahead": {"nats_per_token": 1.1e-6, "stderr": 4e-6, "is_beyond_rounding": False},
            "untrained": {"bits_per_byte": 3.8412, "unigram_bits_per_byte": 3.2207},
        },
        "config": {"environment": {"python": "3.11.2", "torch": "2.13.0+cpu"}, "dataset": {"hash": "9f2c" * 16}},
    }
    scored_run = create_run(entry, **{**values, **fields})
    add_curve_points(scored_run, 1, steps)
    Score.objects.create(run=scored_run, name="bits_per_byte", value=bits_per_byte, stderr=stderr, count=412_337)
    Score.objects.create(
        run=scored_run, name="nats_per_token", value=bits_per_byte * 2.1, stderr=stderr * 2.1, count=120_114
    )
    Score.objects.create(run=scored_run, name="blimp/acc", value=0.6213, stderr=0.0121)
    for sentence in (
        "It is queued.",
        "this-machine trains it.",
        "Training is over; it is being scored.",
        "It is on the board.",
    ):
        Event.record("site", scored_run, sentence)
    return scored_run


def create_training_run(entry: Entry, steps: int, **fields: Any) -> Run:
    now = timezone.now()
    values = {"state": Run.State.TRAINING, "started_at": now - timedelta(seconds=steps * SECONDS_PER_STEP)}
    training_run = create_run(entry, **{**values, **fields})
    if steps:
        add_curve_points(training_run, 1, steps)
        Sample.objects.create(
            run=training_run, step=steps, prompt="The ", text="function returns the name of the module, and the"
        )
        Sample.objects.create(
            run=training_run, step=steps, prompt="def ", text="__init__(self, name, value=None):\n        self._name ="
        )
    return training_run


def create_night_board() -> dict[str, Any]:
    """Fill the board and return its rows by name."""
    three_minutes = create_track()
    main = create_entry(three_minutes, "main", kind=Entry.Kind.MAIN, author="")
    smear = create_entry(
        three_minutes, "Smeared keys", "smear", hypothesis="Keys that see one token back find bigrams sooner."
    )
    pythia = create_entry(
        three_minutes, "Pythia 14M, as published", "litgpt", author="EleutherAI", sha="c0ffee" + SHA[6:]
    )
    wide = create_entry(three_minutes, "Wider, shallower", "gpt", author="tomás", sha="beef" + SHA[4:])
    three_minutes.season.baseline = main
    three_minutes.season.save()
    trusted_node = create_node()
    best = create_scored_run(smear, 2.0412, 0.0071)
    create_scored_run(main, 2.0688, 0.0074, seed=7, trust=Run.Trust.REPLICATED)
    create_scored_run(pythia, 2.3127, 0.0093, trust=Run.Trust.SCORED, parameters=14_067_712, train_flops=9.1e13)
    train = create_training_run(main, 520, purpose=Run.Purpose.NIGHTLY)
    active_lease = create_lease(train, trusted_node)
    LogChunk.objects.create(
        lease=active_lease,
        offset=0,
        text="Dataset 9f2c9f2c, 4,012,557 tokens\nstep 1 loss 9.021\n\x1b[32mstep 2\x1b[0m\n",
    )
    Event.record("site", train, "It is queued.")
    Event.record("node:this-machine", train, "this-machine trains it.")
    create_run(pythia, seed=3, state=Run.State.QUEUED)
    create_run(smear, seed=3, state=Run.State.QUEUED)
    create_run(wide, seed=1, state=Run.State.WAITING)
    create_run(
        wide, seed=2, state=Run.State.FAILED, cause="model", finished_at=timezone.now() - timedelta(days=1),
        started_at=timezone.now() - timedelta(days=1), reason="The loss became NaN at step 212.",
    )  # fmt: skip
    swarm = campaign_scene.create_campaign()
    return {
        "track": three_minutes,
        "main": main,
        "train": train,
        "best": best,
        "entry": smear,
        "node": trusted_node,
        "campaign": swarm,
    }
