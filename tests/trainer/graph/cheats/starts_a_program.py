"""Has another program do its work."""

from __future__ import annotations

import subprocess

import honest
from honest import Config, recipe

__all__ = ["Config", "Model", "recipe"]


class Model(honest.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        subprocess.run(["true"], check=False)
