"""The models of a run to score, trained and untrained, from its graphs."""

from __future__ import annotations

from typing import NamedTuple

import torch

from trainer.checkpoint.graph_weights import load_graph_model
from trainer.graph.model import build_model
from trainer.graph.schema import TracedArchitecture
from trainer.models.base import LanguageModel
from trainer.scoring.run_folder import RunFolder

UNTRAINED_SEED = 0


class ScoredModels(NamedTuple):
    trained: LanguageModel
    untrained: LanguageModel


def load_graph_models(traced: TracedArchitecture, run: RunFolder) -> ScoredModels:
    """Return models that compute the graphs. No Python of the architecture runs. Raise `ModelError`."""
    torch.manual_seed(UNTRAINED_SEED)
    return ScoredModels(load_graph_model(traced, run.checkpoint), build_model(traced))
