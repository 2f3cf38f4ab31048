"""A track at a small scale: same labels, kind of budget, ladder, strategy and recipe, a smaller model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from dailytrain.rehearsal.full_tracks import FullTrack
from leaderboard.models import Season, Track
from trainer.accounting.budget import Budget
from trainer.accounting.training_size import UploadLimits, compute_gpt_size

DEPTH = 2
TRIAL_DEPTH = 1
MAX_DEVICES = 2
"""Processes of a run whose track asks for more devices: the same strategy, on a machine with few cores."""
SEQUENCE_LENGTH, BATCH, MICRO_BATCH = 64, 4, 2
CORE_FLOPS = 2e10
"""Training FLOP/s of a model this small on one core, about: what a second of the night becomes."""
MIN_STEPS = 16
"""Steps of the shortest run, rung or trial. The loss of a shorter one is meaningless."""
PROBE_SECONDS = 0.2
SUITE = ["blimp_sample", "core_sample"]
"""Their data is part of the repository."""
SUITE_LIMIT = 8


def build_track(full: FullTrack, season: Season, scale: float, *, has_ladder: bool, is_on_gpu: bool = False) -> Track:
    """Return the unsaved track at this scale, with its ladder or without one."""
    fields = {**full.fields, **({} if has_ladder else {"ladder": {}})}
    scaled = scale_fields(fields, scale, season.vocabulary_size or 0)
    if is_on_gpu:
        train = {key: value for key, value in scaled["config"]["train"].items() if key not in ("precision", "compile")}
        scaled["config"]["train"] = train
    track = Track(slug=full.slug, season=season, **scaled)
    track.limits = scale_limits(full, track)
    return track


def scale_fields(fields: Mapping[str, Any], scale: float, vocabulary_size: int) -> dict[str, Any]:
    """Return the fields of a track whose runs take about `scale` times as long, or as long as `MIN_STEPS` need.

    The track has the computed limits.
    """
    trial = fields.get("trial", {})
    parts = [*fields.get("ladder", {}).get("rungs", ()), trial.get("part", 1)]
    flops_per_token = 6 * compute_gpt_size(DEPTH, vocabulary_size).parameters
    tokens = max(
        fields["expected_seconds"] * scale * CORE_FLOPS / flops_per_token,
        MIN_STEPS * BATCH * SEQUENCE_LENGTH / min(parts),
    )
    seconds = round(tokens * flops_per_token / CORE_FLOPS, 2)
    scaled = {
        **fields,
        "budget": str(scale_budget(Budget.parse(fields["budget"]), tokens, flops_per_token)),
        "expected_seconds": seconds,
        "config": {**scale_config(fields["config"]), "checkpoint_every": f"{max(seconds / 4, 1):.2g}s"},
        "suite": SUITE,
        "suite_limit": SUITE_LIMIT,
        "stops_early": False,  # its runs have two evaluations
        "probe_seconds": min(fields.get("probe_seconds", PROBE_SECONDS), PROBE_SECONDS),
        "limits": {},
    }
    if trial:
        scaled["trial"] = {**trial, "config": {"model": {"depth": TRIAL_DEPTH}}}
    return scaled


def scale_limits(full: FullTrack, scaled: Track) -> dict[str, int]:
    """Return the track's own limits in the same proportion to the computed ones."""
    given = full.fields.get("limits", {})
    before, after = compute_limits(full.build(limits={})), compute_limits(scaled)
    return {name: round(value * after[name] / before[name]) for name, value in given.items()}


def compute_limits(track: Track) -> dict[str, float]:
    """Return the limits of a track without limits of its own: those of jobs, and those of uploads."""
    uploads = track.upload_limits() or UploadLimits(settings.BLOB_MAX_BYTES, settings.LEASE_MAX_BYTES)
    return {**track.training_limits().model_dump(), **vars(uploads)}


def scale_budget(budget: Budget, tokens: float, flops_per_token: float) -> Budget:
    """Return a budget of the same kind that buys about so many tokens.

    A budget of time becomes one of FLOPs: on cores that other programs use too, equal times buy different runs.
    """
    if budget.kind in ("seconds", "flops"):
        return Budget("flops", float(f"{tokens * flops_per_token:.3g}"))
    per_unit = 1 if budget.kind == "tokens" else BATCH * SEQUENCE_LENGTH
    return Budget(budget.kind, round(tokens / per_unit))


def scale_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with a small model on CPU cores; strategy and recipe stay."""
    train = {
        **config.get("train", {}),
        "sequence_length": SEQUENCE_LENGTH,
        "batch": BATCH,
        "micro_batch": MICRO_BATCH,
        "precision": "fp32",
        "compile": False,
        "evaluations": 2,
        "dev_tokens": 4096,
        "sample_tokens": 16,
    }
    fixed = {"devices": min(config.get("devices", 1), MAX_DEVICES), "threads": 1, "model": {"depth": DEPTH}}
    others = {name: value for name, value in config.items() if name != "arch"}
    return {**others, **fixed, "train": train}
