"""The interface of all kinds of corpora."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """One text. The id is unique in its corpus and contains no absolute path."""

    id: str
    text: str
    prompt_length: int = 0
    """Characters of the prompt at the start, which carries no loss."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus that exists and can be read."""

    fingerprint: Callable[[], dict[str, Any]]
    """Return hashes or revisions that identify the content of `documents`, as a cache key. Reads the files."""
    documents: Callable[[], Iterator[Document]]
    """Start from the first document, in an order that depends only on the content."""


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """What to know before choosing a corpus."""

    license: str
    size: str
    source: str
    """Repository and pinned revision, or where the text is from."""
    public_results: str = ""
    """What others report for it."""
