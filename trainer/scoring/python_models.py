"""Load the models of a run from its architecture's Python. The only module of the scorer that runs it."""

from __future__ import annotations

from trainer.checkpoint.store import load_checkpoint_weights, read_run
from trainer.errors import attribute_to_model
from trainer.models import load_architecture
from trainer.scoring.run_folder import RunFolder
from trainer.scoring.scored_models import ScoredModels, set_random_seed


def load_python_models(run: RunFolder) -> ScoredModels:
    """Return the architecture's modules in float32. Raise `ModelError` if it cannot be loaded."""
    record = read_run(run.folder)
    with attribute_to_model("while the model was loaded"):
        module = load_architecture(run.arch)
        config = module.Config(**record["model"])
        trained = module.Model(config).float()
        load_checkpoint_weights(run.checkpoint, trained)
        seed = set_random_seed()
        return ScoredModels(trained, module.Model(config).float(), seed)
