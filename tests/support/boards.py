"""Boards with known true multipliers: a ladder of the baseline, and entries with given multipliers."""

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


def compute_loss(compute: float) -> float:
    """Return the baseline's bits per byte at a share of the budget."""
    return 2.0 - 0.1 * math.log(compute) + 0.01 * math.log(compute) ** 2


def create_ladder_track(**fields: Any) -> tuple[Track, Entry]:
    """Create a track with an empty ladder; return it and its baseline."""
    track = scene.create_track(slug="small", budget="1e13flops", ladder=LADDER, seeds=3, **fields)
    baseline = scene.create_entry(track, "main, 3 March", kind=Entry.Kind.MAIN, author="")
    track.season.baseline = baseline
    track.season.save()
    return track, baseline


def create_scored_run(entry: Entry, multiplier: float = 1.0, part: float = 1.0, seed: int = 1, **fields: Any) -> Run:
    """Create a scored run of an entry with this compute multiplier, at `part` of the budget."""
    track, noise = entry.track, random.Random(f"{entry.title} {part} {seed}").gauss(0, NOISE)
    values = {
        "budget": track.budget if part == 1 else str(Budget.parse(track.budget).times(part)),
        "state": Run.State.FINISHED,
        "trust": Run.Trust.SCORED,
        "bits_per_byte": compute_loss(part * multiplier) + noise,
        "bits_per_byte_stderr": 0.007,
        "train_flops": 1e13 * part * 1.0003,
        "train_seconds": SECONDS * part * (1 + noise),
        "node_class": "2 CPU cores",
        "parameters": 1_574_000,
        "step": 900,
        "finished_at": timezone.now() - timedelta(days=20),
    }
    return scene.create_run(entry, seed=seed, **{**values, **fields})


def fill_ladder(baseline: Entry, seeds: int = 3, rungs: tuple[float, ...] = (0.125, 0.25, 0.5, 1, 2)) -> None:
    """Create the scored ladder runs of the baseline."""
    for part in rungs:
        for seed in range(1, seeds + 1):
            create_scored_run(baseline, part=part, seed=seed, purpose=Run.Purpose.LADDER)


def create_board() -> tuple[Track, dict[str, Entry]]:
    """Create a track with a full ladder and entries that are better, level (one run) and worse."""
    track, baseline = create_ladder_track()
    fill_ladder(baseline)
    entries = {"baseline": baseline}
    for title, multiplier, seeds in (("Better", 1.2, 3), ("Level", 1.01, 1), ("Worse", 0.7, 3)):
        entries[title] = scene.create_entry(track, title, "smear", sha=f"{len(entries):040x}")
        for seed in range(100, 100 + seeds):
            create_scored_run(entries[title], multiplier, seed=seed)
    return track, entries
