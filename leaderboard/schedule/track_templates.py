"""Templates of tracks, for `manage.py create_track NAME`. Maintainers can change all values in the admin.

`expected_seconds` are the budget's, or its FLOPs at 40 % of the GPUs' bf16 peak (`trainer.accounting.peak_flops`;
nanochat reaches 59 % on an H100). None is measured; the queue's estimates follow the first runs. Micro-batches fit the
card by `trainer.accounting.training_size`: benchmarks/results/track-sizes.md lists parameters, memory and bytes.
The limits of memory, disk and uploads follow from the sizes (`Track.training_limits`, `Track.upload_limits`).
"""

from __future__ import annotations

from typing import Any

from leaderboard import initial_weights
from leaderboard.models import Run, Season, Track
from trainer.accounting.peak_flops import PEAK_FLOPS
from trainer.accounting.training_size import ModelSize, compute_model_size

GIB = 2**30
MFU = 0.4
"""Share of a GPU's peak that training reaches, assumed."""
ANY_PRECISION: dict[str, Any] = {"sequence_length": 1024, "batch": 64}
"""Without a precision: GPUs of 16 GB include the V100 and the T4, which have no bf16, so `auto` decides on the node."""
SMALL: dict[str, Any] = {"precision": "bf16", "table_precision": "bf16", **ANY_PRECISION}
LONG_ROWS: dict[str, Any] = {"precision": "bf16", "sequence_length": 2048}
SUITE_LIMIT = {"suite_limit": 500}
"""Questions of each part of a task, as nanochat limits CORE's (`max_per_task`): all take an H100 hours for a night."""
SUITE = {"suite": ["blimp", "lambada_openai", "hellaswag", "piqa", "arc_easy", "winogrande", "core"], **SUITE_LIMIT}
DESKTOP_SUITE = {"suite": ["blimp", "lambada_openai", "piqa", "arc_easy", "core"], **SUITE_LIMIT}
SMALL_SUITE = {
    "suite": ["blimp", "lambada_openai", "piqa", "arc_easy"],
    **SUITE_LIMIT,
}  # CORE is near 0 below 12 layers
LADDER = {"rungs": [1 / 8, 1 / 4, 1 / 2, 1, 2], "seeds": 3}  # costs 12 budgets
LARGE_LADDER = {"rungs": [1 / 8, 1 / 4, 1 / 2, 1], "seeds": 2}  # 4 budgets: no rung above a run of many GPU-days
SHARDED: dict[str, Any] = {"is_traced": False, "probe_seconds": 0.0}
"""A run on several devices cannot be compared with a probe on one, and trains the Python of its architecture."""


def estimate_seconds(flops: float, gpu: str, devices: int = 1) -> float:
    return round(flops / (MFU * PEAK_FLOPS[gpu] * devices), -2)


def build_config(depth: int, checkpoint_every: str, train: dict[str, Any], devices: int = 1) -> dict[str, Any]:
    return {"devices": devices, "model": {"depth": depth}, "train": train, "checkpoint_every": checkpoint_every}


def build_night(gpu: str) -> dict[str, Any]:
    """Return the night on one H100 or H200: a track each, since a budget of time buys different work on them."""
    return {
        "name": f"The night on one {gpu}",
        "description": "Whatever is on main, trained from scratch: 24 hours from departure to departure. 21 of them "
        "train; start, evaluations, uploads and scoring take one, and two make up for an interruption.",
        "budget": "75600s",
        "expected_seconds": 75_600.0,
        "needs_labels": [f"1x{gpu.lower()}", "1x80gb"],
        "needs_memory_bytes": 64 * GIB,
        "config": build_config(
            24, "15m", {**LONG_ROWS, "table_precision": "bf16", "batch": 256, "micro_batch": 16, "evaluations": 48}
        ),
        "ladder": LADDER,
        **SUITE,
        "nightly": True,
        "monthly": 3,
    }


def build_desktop_track(gpu: str, depth: int, budget: float) -> dict[str, Any]:
    """Return a track for one GeForce card of 24 GB: about four hours."""
    return {
        "name": f"Four hours on an RTX {gpu}",
        "description": f"For one GeForce RTX {gpu}.",
        "budget": f"{budget:.3g}flops".replace("+", ""),
        "expected_seconds": estimate_seconds(budget, f"RTX {gpu}"),
        "needs_labels": [f"1x{gpu}", "1x24gb"],
        "config": build_config(depth, "10m", {**SMALL, "micro_batch": 8}),
        "ladder": LADDER,
        **DESKTOP_SUITE,
    }


TEMPLATES: dict[str, dict[str, Any]] = {
    "night-h100": build_night("H100"),
    "night-h200": build_night("H200"),
    "playground-h100": {
        "name": "Two hours on one H100",
        "approval": Track.Approval.KNOWN,
        "stops_early": True,
        "description": "For pull requests: large enough to see whether an idea holds at scale.",
        "kind": Track.Kind.PLAYGROUND,
        "budget": "3e18flops",
        "expected_seconds": estimate_seconds(3e18, "H100"),
        "needs_labels": ["1xh100", "1x80gb"],
        "config": build_config(
            16, "10m", {**LONG_ROWS, "table_precision": "bf16", "batch": 128, "micro_batch": 16, "evaluations": 8}
        ),
        "ladder": LADDER,
        **SUITE,
    },
    "desktop-3090": build_desktop_track("3090", 12, 4e17),
    "desktop-4090": build_desktop_track("4090", 14, 9.5e17),
    "desktop-12gb": {
        "name": "Three hours on a card of 12 GB",
        "description": "For GPUs of 12 GB. The expected time is that of an RTX 3060.",
        "budget": "1e17flops",
        "expected_seconds": estimate_seconds(1e17, "RTX 3060"),
        "needs_labels": ["1x12gb"],
        "config": build_config(10, "10m", {**SMALL, "micro_batch": 8}),
        "ladder": LADDER,
        **SMALL_SUITE,
    },
    "laptop-8gb": {
        "name": "Half an hour on a laptop’s GPU",
        "description": "For GPUs of 8 GB. The expected time is that of a desktop RTX 4060.",
        "budget": "2e16flops",
        "expected_seconds": estimate_seconds(2e16, "RTX 4060"),
        "needs_labels": ["1x8gb"],
        "config": build_config(8, "5m", {**ANY_PRECISION, "micro_batch": 2}),
        "ladder": LADDER,
        **SMALL_SUITE,
    },
    "ci-16gb": {
        "name": "A quarter of an hour on a small card",
        "approval": Track.Approval.ANYONE,
        "stops_early": True,
        "description": "For GPUs of 16 to 20 GB: enough to see whether an idea learns, little enough for every commit.",
        "budget": "1e16flops",
        "expected_seconds": estimate_seconds(1e16, "RTX 4060 Ti"),
        "needs_labels": ["1x16gb"],
        "config": build_config(6, "2m", {**ANY_PRECISION, "micro_batch": 16, "evaluations": 8}),
        "ladder": LADDER,
        "seeds": 3,  # while undecided
        **SMALL_SUITE,
    },
    "community-24gb": {
        "name": "Community runs",
        "description": "Models that people need: small languages, creative uses. The highest impact runs first.",
        "kind": Track.Kind.COMMUNITY,
        "budget": "1e18flops",
        "expected_seconds": estimate_seconds(1e18, "RTX 3090"),
        "needs_labels": ["1x24gb"],
        "config": build_config(16, "10m", {**SMALL, "micro_batch": 8}),
        "ladder": LARGE_LADDER,
        **DESKTOP_SUITE,
    },
    "playground-16gb": {
        "name": "Playground",
        "description": "Say what you expect to see. A model of depth 4 on a tenth of the budget first; when it has "
        "arrived, the whole one follows. Gives way to the nightly train. No ladder, since it would compare two sizes.",
        "kind": Track.Kind.PLAYGROUND,
        "position": 1,  # pull requests are offered the first playground, that of an H100
        "budget": "1e17flops",
        "expected_seconds": estimate_seconds(1e17, "RTX 4060 Ti"),
        "needs_labels": ["1x16gb"],
        "config": build_config(10, "5m", {**ANY_PRECISION, "micro_batch": 8}),
        "trial": {"part": 0.1, "config": {"model": {"depth": 4}}},
        **SMALL_SUITE,
    },
    "tune-1b5-2x24gb": {
        "name": "1.5 billion on two cards of 24 GB",
        "description": "All weights of a model of up to 1.6 billion, each card holding half of them and of the "
        "optimizer’s state. Its runs start from the weights that the track names.",
        "budget": "50M-tokens",
        "expected_seconds": estimate_seconds(50e6 * 8 * 1.58e9, "RTX 3090", 2),  # with activations computed again
        "needs_labels": ["2x24gb"],
        "needs_memory_bytes": 32 * GIB,
        "config": {
            "devices": 2,
            "model": {"depth": 24},
            "train": {**LONG_ROWS, "strategy": "fsdp", "activation_checkpointing": True, "batch": 32, "micro_batch": 1},
            "recipe": {"clip": 1.0, "schedule": {"warmup": 0.03, "top": 0.1}},
            "checkpoint_every": "15m",
        },
        "ladder": LARGE_LADDER,
        **SUITE,
        **SHARDED,
    },
    "large-4x80gb": {
        "name": "Large, on four GPUs",
        "description": "For machines with four GPUs of 80 GB or more.",
        "budget": "4e19flops",
        "expected_seconds": estimate_seconds(4e19, "H100", 4),
        "needs_labels": ["4x80gb", "500gb"],
        "needs_memory_bytes": 128 * GIB,
        "config": build_config(28, "15m", {**LONG_ROWS, "strategy": "fsdp", "batch": 256, "micro_batch": 4}, devices=4),
        "ladder": LARGE_LADDER,
        **SUITE,
        **SHARDED,
    },
    "large-8x80gb": {
        "name": "Large, on eight GPUs",
        "description": "For machines with eight GPUs of 80 GB or more.",
        "budget": "2e20flops",
        "expected_seconds": estimate_seconds(2e20, "H100", 8),
        "needs_labels": ["8x80gb", "500gb"],
        "needs_memory_bytes": 256 * GIB,
        "config": build_config(32, "15m", {**LONG_ROWS, "strategy": "fsdp", "batch": 512, "micro_batch": 4}, devices=8),
        "ladder": LARGE_LADDER,
        **SUITE,
        **SHARDED,
    },
    "long-run-8x80gb": {
        "name": "The long run",
        "description": "One large model on eight GPUs for months, followed day by day: see the preset rwkv5-7b. No "
        "ladder, since a run of 100 days is compared with nothing.",
        "budget": "627B-tokens",
        # 6 x 7.5e9 parameters x 627e9 tokens: 103 days, more than a node's longest lease.
        "expected_seconds": estimate_seconds(6 * 7.518e9 * 627e9, "H100", 8),
        "needs_labels": ["8x80gb", "500gb"],
        "needs_memory_bytes": 256 * GIB,
        "config": {
            "arch": "rwkv5-7b",
            "devices": 8,
            "train": {
                "precision": "bf16",
                "sequence_length": 4096,
                "batch": 256,
                "micro_batch": 1,
                "strategy": "zero2",
                "activation_checkpointing": True,
            },
            "checkpoint_every": "15m",
        },
        **SUITE,
        "releases": 10,
        **SHARDED,
    },
}


SWARM_TEMPLATES: dict[str, dict[str, Any]] = {
    "swarm-gpt2": {
        "name": "One model on many machines",
        "description": "The shape of GPT-2, cut into two stages and trained by machines that come and go.",
        "kind": Track.Kind.SWARM,
        "budget": "2000steps",
        # 2,000 steps of 524,288 tokens at four workers a stage of 8,000 tokens/s, the limit of 100 Mbit/s at width 768.
        "expected_seconds": 32_800.0,
        "config": {
            "model": {"depth": 12, "tied_head": False},
            "train": {"sequence_length": 1024},
            "swarm": {
                "micro_batch": 8,
                "micro_batches": 64,
                "learning_rate": 4e-4,
                "warmup_steps": 100,
                "precision": "bf16",
                "wire": "bf16",
            },
        },
        "swarm": {"stages": 2, "workers": 4, "minimum": 1, "patience": 30},
        "milestones": 0,
        "is_traced": False,
        "probe_seconds": 0.0,
    }
}
"""Tracks on which `gpt`, `smear` and `nanogpt` can train."""
CHAIN = ("ci-16gb", "playground-h100", "night-h100")
"""Templates of which each qualifies for the next."""
RWKV_VOCABULARY = 65_536  # its world tokenizer


def compute_template_size(template: dict[str, Any]) -> ModelSize:
    """Return the size of the baseline on a template's track."""
    config = template["config"]
    size = compute_model_size(config, vocabulary_size=RWKV_VOCABULARY if "arch" in config else None)
    assert size is not None, "templates name an architecture and a depth of ours"
    return size


class TrackExistsError(ValueError):
    """A track with this slug exists."""


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
    values = {**TEMPLATES, **SWARM_TEMPLATES}[template] | ({"name": name} if name else {})
    checkpoint = initial_weights.get_checkpoint_at(start, step) if start and step is not None else None
    track = Track(slug=slug, season=season, start_run=start, start_checkpoint=checkpoint, **values)
    track.is_traced = track.is_traced and start is None
    link_chain(track)
    track.full_clean()
    track.save()
    for other in Track.objects.filter(season=season, slug__in=CHAIN).exclude(pk=track.pk):
        link_chain(other)
        other.save(update_fields=["qualifier"])
    return track


def link_chain(track: Track) -> None:
    """Let the nearest earlier track of `CHAIN` that the season has qualify for this one, if it is of the chain."""
    earlier = CHAIN[: CHAIN.index(track.slug)] if track.slug in CHAIN and track.is_traced else ()
    for slug in earlier:
        track.qualifier = Track.objects.filter(season=track.season, slug=slug).first() or track.qualifier
