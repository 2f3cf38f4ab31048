"""A model client without a process, so that tests can score many models quickly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.support.scoring_models import write_run
from trainer.sandbox import get_driver
from trainer.scoring.model_client import ModelProcessClient
from trainer.scoring.run_folder import RunFolder


class InProcessModel:
    """Has the interface of `ModelProcessClient`."""

    def __init__(self, run: RunFolder, model: torch.nn.Module) -> None:
        self.run, self.layout, self.model = run, ModelProcessClient(run, get_driver("none")).layout, model
        self.sequence_length, self.max_tokens = run.sequence_length, self.layout.positions

    def wait_until_loaded(self) -> None: ...

    def check_unchanged(self) -> None: ...

    def close(self) -> None: ...

    def get_logits(self, tokens: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.model(torch.from_numpy(tokens)).float().numpy()


def write_and_open_run(folder: Path) -> RunFolder:
    write_run(folder)
    return RunFolder.open(folder)
