"""Sizes of the models that entries name: which architecture a run trains, and whether a track's GPUs can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scheduler import matching
from trainer.accounting.training_size import explain_too_large

if TYPE_CHECKING:
    from leaderboard.models import Track


def choose_architecture(track_config: Mapping[str, Any], architecture: str) -> str:
    """Return the architecture to train: the track's size of it, such as `rwkv5-7b` for `rwkv5`, or the entry's own."""
    fixed = str(track_config.get("arch", ""))
    return fixed if fixed.startswith(f"{architecture}-") else architecture


def explain_size_excess(track: Track, config: Mapping[str, Any]) -> str:
    """Return why the track's GPUs cannot hold the model of a run's configuration; empty if they can or may."""
    card_bytes = matching.parse_labels(tuple(track.needs_labels)).gpu_memory_bytes
    if not card_bytes:
        return ""
    return explain_too_large(config, track.budget, card_bytes, track.season.vocabulary_size)
