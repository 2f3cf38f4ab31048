"""Other people's checkpoint formats: one file and one line each, with the functions `export` and `bring_in`."""

from __future__ import annotations

from trainer.errors import UserError

FORMATS = {"litgpt": "trainer.checkpoint.formats.litgpt", "rwkv": "trainer.checkpoint.formats.rwkv"}


class FormatError(UserError):
    """The file cannot be read or written in that format; the message is one line."""
