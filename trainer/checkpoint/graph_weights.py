"""Load the weights of a checkpoint into a traced architecture."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from trainer.errors import ModelError
from trainer.graph.model import GraphModel, build_model
from trainer.graph.schema import TracedArchitecture


def load_graph_model(traced: TracedArchitecture, checkpoint: Path) -> GraphModel:
    """Return the model with the weights of a checkpoint's folder. Raise `ModelError` if one is missing."""
    model = build_model(traced)
    weights = load_file(checkpoint / "model.safetensors")
    model.load_state_dict(weights, strict=False)
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    if missing:
        raise ModelError(f"The checkpoint has no {missing[0]}.")
    return model
