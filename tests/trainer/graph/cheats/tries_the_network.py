"""Opens a network connection."""

from __future__ import annotations

import socket

import honest
from honest import Config, recipe

__all__ = ["Config", "Model", "recipe"]


class Model(honest.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        socket.create_connection(("127.0.0.1", 9), 0.1)
