"""The scorer's checks on models of this process: for asking many of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.support.scoring_models import write_run
from trainer.sandbox import get_driver
from trainer.scoring.model_client import ModelProcessClient
from trainer.scoring.run_folder import RunFolder


class Nearby:
    """A door without a process behind it."""

    def __init__(self, run: RunFolder, model: torch.nn.Module) -> None:
        self.run, self.space, self.model = run, ModelProcessClient(run, get_driver("none")).space, model

    def wait(self) -> None: ...

    def check_watched(self) -> None: ...

    def close(self) -> None: ...

    def ask(self, tokens: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.model(torch.from_numpy(tokens)).float().numpy()


def written_run(folder: Path) -> RunFolder:
    write_run(folder)
    return RunFolder.open(folder)
