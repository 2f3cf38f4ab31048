"""Load the models of a run from its architecture's Python. The only module of the scorer that runs it."""

from __future__ import annotations

import torch

from trainer.checkpoint.store import load_checkpoint_weights, read_run
from trainer.errors import attribute_to_model
from trainer.models import load_architecture
from trainer.scoring.run_folder import RunFolder
from trainer.scoring.scored_models import UNTRAINED_SEED, ScoredModels


def load_python_models(run: RunFolder) -> ScoredModels:
    """Return the architecture's modules in float32. Raise `ModelError` if it cannot be loaded."""
    record = read_run(run.folder)
    torch.manual_seed(UNTRAINED_SEED)
    with attribute_to_model("while the model was loaded"):
        module = load_architecture(run.arch)
        config = module.Config(**record["model"])
        trained, untrained = (module.Model(config).float() for _ in range(2))
        load_checkpoint_weights(run.checkpoint, trained)
    return ScoredModels(trained, untrained)
