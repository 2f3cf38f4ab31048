"""Load the weights of a checkpoint into a traced architecture."""

from __future__ import annotations

from pathlib import Path

from trainer.checkpoint.weight_files import load_weights
from trainer.errors import ModelError
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import GraphModel, build_model


def load_graph_model(traced: TracedArchitecture, checkpoint: Path) -> GraphModel:
    """Return the model with the weights of a checkpoint's folder. Raise `ModelError` if a saved tensor is missing."""
    model = build_model(traced)
    weights = load_weights(checkpoint)
    model.load_state_dict(weights, strict=False)
    saved = model.state_dict().keys()
    tensors = (*model.named_parameters(), *model.named_buffers())
    missing = [name for name, _ in tensors if name in saved and name not in weights]
    if missing:
        raise ModelError(f"The checkpoint has no {missing[0]}.")
    return model
