"""Checkpoint formats of other programs: one file and one line each, with `export_run` and `import_run`."""

from __future__ import annotations

from trainer.errors import UserError

FORMATS = {"litgpt": "trainer.checkpoint.formats.litgpt", "rwkv": "trainer.checkpoint.formats.rwkv"}


class FormatError(UserError):
    """The file cannot be read or written in that format; the message is one line."""
