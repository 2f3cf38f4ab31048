"""What every kind of corpus yields, and the one way in which it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """One text. The id is unique in its corpus and never holds an absolute path."""

    id: str
    text: str
    given: int = 0
    """So many characters at its start are a prompt: a model reads them, and learns only what comes after."""


class CorpusError(ValueError):
    """The corpus cannot be read; the message is one line for whoever named it."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus that was found, and not yet read."""

    # Everything that decides what `documents` yields (hashes, revisions): the key of the cache. Reads the files.
    fingerprint: Callable[[], dict[str, Any]]
    # Starts from the first document each time, in an order that depends on nothing but the content.
    documents: Callable[[], Iterator[Document]]
