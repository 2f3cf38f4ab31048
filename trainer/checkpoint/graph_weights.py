"""Load the weights of a checkpoint into a traced architecture."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from trainer.checkpoint.files import load_weights
from trainer.errors import UnusableCheckpointError, is_machine_failure, to_one_line
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import GraphModel, build_model


def load_graph_model(traced: TracedArchitecture, checkpoint: Path) -> GraphModel:
    """Return the model with a checkpoint's weights. Raise `UnusableCheckpointError` if they do not fit."""
    model = build_model(traced)
    try:
        weights = load_weights(checkpoint)
        model.load_state_dict(weights, strict=False)
    except (RuntimeError, SafetensorError, FileNotFoundError) as error:
        if is_machine_failure(error):
            raise
        raise UnusableCheckpointError(f"The checkpoint's weights cannot be loaded: {to_one_line(error)}") from error
    saved = model.state_dict().keys()
    tensors = (*model.named_parameters(), *model.named_buffers())
    missing = [name for name, _ in tensors if name in saved and name not in weights]
    if missing:
        raise UnusableCheckpointError(f"The checkpoint has no {missing[0]}.")
    return model
