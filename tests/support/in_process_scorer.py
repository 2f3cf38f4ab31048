"""The scorer's checks on models of this process: for asking many of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.support.scoring_models import write_run
from trainer.sandbox import driver
from trainer.scoring.door import Door
from trainer.scoring.runs import Run


class Nearby:
    """A door without a process behind it."""

    def __init__(self, run: Run, model: torch.nn.Module) -> None:
        self.run, self.space, self.model = run, Door(run, driver("none")).space, model

    def wait(self) -> None: ...

    def check_watched(self) -> None: ...

    def close(self) -> None: ...

    def ask(self, tokens: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.model(torch.from_numpy(tokens)).float().numpy()


def written_run(folder: Path) -> Run:
    write_run(folder)
    return Run.open(folder)
