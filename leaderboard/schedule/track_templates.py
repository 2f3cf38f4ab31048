"""Templates of tracks, for `manage.py create_track NAME`. Maintainers can change all values in the admin.

Budgets and `expected_seconds` assume 40 % of the GPUs' bf16 peak. They are not measured; the queue's estimates follow
the first runs.
"""

from __future__ import annotations

from typing import Any

from leaderboard import initial_weights
from leaderboard.models import Run, Season, Track

GIB = 2**30
ONE_CARD: dict[str, Any] = {"sequence_length": 1024, "batch": 64, "micro_batch": 16}
"""Without a precision: GPUs of 16 GB include the V100 and the T4, which have no bf16, so `auto` decides on the node."""

TEMPLATES: dict[str, dict[str, Any]] = {
    "night-80gb": {
        "name": "The night on one H100",
        "description": "Whatever is on main, trained from scratch for as much of 24 hours as probes and uploads leave.",
        "budget": "83700s",
        "expected_seconds": 83_700.0,
        "needs_labels": ["1x80gb"],
        "needs_memory_bytes": 64 * GIB,
        "config": {
            "model": {"depth": 24},
            "train": {"precision": "bf16", "sequence_length": 2048, "batch": 256, "micro_batch": 16, "evaluations": 48},
            "checkpoint_every": "15m",
        },
        "limits": {"memory_bytes": 64 * GIB, "disk_bytes": 100 * GIB},
        "nightly": True,
    },
    "ci-16gb": {
        "name": "A quarter of an hour on a small card",
        "description": "For GPUs of 16 to 20 GB: enough to see whether an idea learns, little enough for every commit.",
        "budget": "1e16flops",
        "expected_seconds": 900.0,
        "needs_labels": ["1x16gb"],
        "config": {"model": {"depth": 6}, "train": ONE_CARD, "checkpoint_every": "2m"},
        "limits": {"memory_bytes": 12 * GIB, "disk_bytes": 20 * GIB},
    },
    "community-24gb": {
        "name": "Community runs",
        "description": "Models that people need: small languages, creative uses. The highest impact runs first.",
        "kind": Track.Kind.COMMUNITY,
        "budget": "1e18flops",
        "expected_seconds": 36_000.0,
        "needs_labels": ["1x24gb"],
        "config": {"model": {"depth": 16}, "train": {"precision": "bf16"} | ONE_CARD, "checkpoint_every": "10m"},
        "limits": {"memory_bytes": 24 * GIB, "disk_bytes": 60 * GIB},
    },
    "playground-16gb": {
        "name": "Playground",
        "description": "Say what you expect to see. A model of depth 4 on a tenth of the budget first; when it has "
        "arrived, the whole one follows. Gives way to the nightly train.",
        "kind": Track.Kind.PLAYGROUND,
        "budget": "1e17flops",
        "expected_seconds": 9_000.0,
        "needs_labels": ["1x16gb"],
        "config": {"model": {"depth": 10}, "train": ONE_CARD, "checkpoint_every": "5m"},
        "trial": {"part": 0.1, "config": {"model": {"depth": 4}}},
        "limits": {"memory_bytes": 12 * GIB, "disk_bytes": 30 * GIB},
    },
    "tune-1b5-2x24gb": {
        "name": "1.5 billion on two cards of 24 GB",
        "description": "All weights of a model of 1.5 billion, each card holding half of them and of AdamW's momenta. "
        "Its runs start from the weights that the track names.",
        "budget": "50M-tokens",
        "expected_seconds": 9_000.0,
        "needs_labels": ["2x24gb"],
        "needs_memory_bytes": 32 * GIB,
        "config": {
            "devices": 2,
            "model": {"depth": 31},
            "train": {
                "strategy": "fsdp",
                "activation_checkpointing": True,
                "precision": "bf16",
                "sequence_length": 2048,
                "batch": 32,
                "micro_batch": 1,
            },
            "recipe": {"clip": 1.0, "schedule": {"warmup": 0.03, "top": 0.1}},
            "checkpoint_every": "15m",
        },
        "limits": {"memory_bytes": 48 * GIB, "disk_bytes": 120 * GIB},
        "is_traced": False,
        "probe_seconds": 0.0,  # a run on several devices cannot be compared with one on one
    },
    "large-4x80gb": {
        "name": "Large, on four GPUs",
        "description": "For machines with four GPUs of 80 GB or more.",
        "budget": "4e19flops",
        "expected_seconds": 30_000.0,
        "needs_labels": ["4x80gb", "500gb"],
        "needs_memory_bytes": 128 * GIB,
        "config": {
            "devices": 4,
            "model": {"depth": 28},
            "train": {"strategy": "fsdp", "precision": "bf16"}
            | {"sequence_length": 2048, "batch": 256, "micro_batch": 8},
            "checkpoint_every": "15m",
        },
        "limits": {"memory_bytes": 128 * GIB, "disk_bytes": 300 * GIB},
        "is_traced": False,
        "probe_seconds": 0.0,
    },
    "large-8x80gb": {
        "name": "Large, on eight GPUs",
        "description": "For machines with eight GPUs of 80 GB or more.",
        "budget": "2e20flops",
        "expected_seconds": 75_000.0,
        "needs_labels": ["8x80gb", "500gb"],
        "needs_memory_bytes": 256 * GIB,
        "config": {
            "devices": 8,
            "model": {"depth": 32},
            "train": {"strategy": "fsdp", "precision": "bf16"}
            | {"sequence_length": 2048, "batch": 512, "micro_batch": 8},
            "checkpoint_every": "15m",
        },
        "limits": {"memory_bytes": 256 * GIB, "disk_bytes": 400 * GIB},
        "is_traced": False,
        "probe_seconds": 0.0,
    },
    "long-run-8x80gb": {
        "name": "The long run",
        "description": "One large model on eight GPUs for months, followed day by day: see the preset rwkv5-7b.",
        "budget": "627B-tokens",
        # 6 x 7.5e9 parameters x 627e9 tokens at 40 % of eight H100s' peak: 103 days, more than a node's longest lease.
        "expected_seconds": 8_900_000.0,
        "needs_labels": ["8x80gb", "500gb"],
        "needs_memory_bytes": 256 * GIB,
        "config": {
            "devices": 8,
            "train": {"strategy": "fsdp", "precision": "bf16", "activation_checkpointing": True}
            | {"sequence_length": 4096, "batch": 256, "micro_batch": 4},
            "checkpoint_every": "15m",
        },
        "limits": {"memory_bytes": 256 * GIB, "disk_bytes": 400 * GIB},
        "is_traced": False,
        "probe_seconds": 0.0,
        "releases": 10,
    },
}


class TrackExistsError(ValueError):
    """There is a track with this slug."""


def create_track(
    template: str, season: Season, *, slug: str = "", name: str = "", start: Run | None = None, step: int | None = None
) -> Track:
    """Create a track of the season from a template. Raises TrackExistsError if its slug is taken.

    `start`: the run whose weights its runs start from; `step`: those of its checkpoint of that step, not the final
    ones. Raises ValueError if there is no such checkpoint.
    """
    slug = slug or template
    if Track.objects.filter(slug=slug).exists():
        raise TrackExistsError(f"There is a track {slug} already. Choose another --slug.")
    values = {**TEMPLATES[template], **({"name": name} if name else {})}
    checkpoint = initial_weights.get_checkpoint_at(start, step) if start and step is not None else None
    track = Track(slug=slug, season=season, start_run=start, start_checkpoint=checkpoint, **values)
    track.is_traced = track.is_traced and start is None
    track.full_clean()
    track.save()
    return track
