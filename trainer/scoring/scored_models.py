"""The models of a run to score, trained and untrained, from its graphs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from trainer.errors import ModelError
from trainer.graph.model import GraphModel, build_model
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
    return ScoredModels(load_trained_model(traced, run.checkpoint), build_model(traced))


def load_trained_model(traced: TracedArchitecture, checkpoint: Path) -> GraphModel:
    """Return the model with the weights of a checkpoint's folder."""
    model = build_model(traced)
    weights = load_file(checkpoint / "model.safetensors")
    model.load_state_dict(weights, strict=False)
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    if missing:
        raise ModelError(f"The checkpoint has no {missing[0]}.")
    return model
