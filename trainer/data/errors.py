"""Errors of corpora, tokenizers and datasets. Each message is one line that says what to change."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import MachineError, UserError, to_one_line


class CorpusError(UserError):
    """The corpus does not exist or cannot be read."""


class TokenizerError(UserError):
    """The tokenizer cannot be read, or does not reproduce every text byte for byte."""


class DatasetError(UserError):
    """The dataset cannot be prepared or read."""


class UnsuitableCorpusError(DatasetError):
    """No dataset can be made of the corpus."""


class DamagedDatasetError(DatasetError, MachineError):
    """A file differs from the manifest."""

    def __init__(self, path: Path, problem: str) -> None:
        """`path` is a file in a split's folder of the dataset."""
        super().__init__(f"{path} {problem}: delete the folder {path.parent.parent} and prepare the dataset again")


def describe_exception(error: Exception) -> str:
    """Return a library's message as one line of at most 160 characters, or the name of its type."""
    return to_one_line(error)[:160] or type(error).__name__
