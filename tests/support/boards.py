"""A board whose truth is known: a ladder of the baseline, and entries of given multipliers."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from typing import Any

from django.utils import timezone

from leaderboard.models import Entry, Run, Track
from tests.support import scene
from trainer.accounting.budget import Budget

LADDER = {"rungs": [0.125, 0.25, 0.5, 1, 2], "seeds": 3}
NOISE = 0.002
SECONDS = 100.0


def loss(compute: float) -> float:
    """Bits per byte of the baseline, by its share of the budget."""
    return 2.0 - 0.1 * math.log(compute) + 0.01 * math.log(compute) ** 2


def small(**fields: Any) -> tuple[Track, Entry]:
    """Return a track with a ladder to be filled, and its baseline."""
    track = scene.track(slug="small", budget="1e13flops", ladder=LADDER, seeds=3, **fields)
    baseline = scene.entry(track, "main, 3 March", kind=Entry.Kind.MAIN, author="")
    track.season.baseline = baseline
    track.season.save()
    return track, baseline


def judged(entry: Entry, multiplier: float = 1.0, part: float = 1.0, seed: int = 1, **fields: Any) -> Run:
    """Add a judged run of an entry that makes so much of its compute."""
    track, noise = entry.track, random.Random(f"{entry.title} {part} {seed}").gauss(0, NOISE)
    values = {
        "budget": track.budget if part == 1 else str(Budget.parse(track.budget).times(part)),
        "state": Run.State.FINISHED,
        "trust": Run.Trust.SCORED,
        "bits_per_byte": loss(part * multiplier) + noise,
        "bits_per_byte_stderr": 0.007,
        "train_flops": 1e13 * part * 1.0003,
        "train_seconds": SECONDS * part * (1 + noise),
        "node_class": "2 CPU cores",
        "parameters": 1_574_000,
        "step": 900,
        "finished_at": timezone.now() - timedelta(days=20),
    }
    return scene.run(entry, seed=seed, **{**values, **fields})


def climb(baseline: Entry, seeds: int = 3, rungs: tuple[float, ...] = (0.125, 0.25, 0.5, 1, 2)) -> None:
    """Fill the ladder."""
    for part in rungs:
        for seed in range(1, seeds + 1):
            judged(baseline, part=part, seed=seed, purpose=Run.Purpose.LADDER)


def board() -> tuple[Track, dict[str, Entry]]:
    """Return a track with a full ladder and entries that are better, level, worse, and level after one run."""
    track, baseline = small()
    climb(baseline)
    entries = {"baseline": baseline}
    for title, multiplier, seeds in (("Better", 1.2, 3), ("Level", 1.01, 1), ("Worse", 0.7, 3)):
        entries[title] = scene.entry(track, title, "smear", sha=f"{len(entries):040x}")
        for seed in range(100, 100 + seeds):
            judged(entries[title], multiplier, seed=seed)
    return track, entries
