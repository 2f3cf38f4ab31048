"""The models of a run to score, trained and untrained, from its graphs."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import torch

from trainer.checkpoint.graph_weights import load_graph_model
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import build_model
from trainer.models.base import LanguageModel
from trainer.scoring.run_folder import RunFolder

SEEDS = 2**31


class ScoredModels(NamedTuple):
    trained: LanguageModel
    untrained: LanguageModel
    seed: int  # of the untrained model


def load_graph_models(traced: TracedArchitecture, run: RunFolder) -> ScoredModels:
    """Return models that compute the graphs. No Python of the architecture runs. Raise `ModelError`."""
    trained = load_graph_model(traced, run.checkpoint)
    seed = set_random_seed()
    return ScoredModels(trained, build_model(traced), seed)


def set_random_seed() -> int:
    """Seed torch at random and return the seed: an entry cannot foresee at which one its untrained model is scored."""
    seed = secrets.randbelow(SEEDS)
    torch.manual_seed(seed)
    return seed
