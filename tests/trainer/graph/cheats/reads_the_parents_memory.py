"""Looks for the targets, or the agent's token, in the memory of its parent."""

from __future__ import annotations

import os
from pathlib import Path

import honest
from honest import Config, recipe

__all__ = ["Config", "Model", "recipe"]


class Model(honest.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        Path(f"/proc/{os.getppid()}/mem").open("rb").close()
