"""The interface of all kinds of corpora."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One text. The id is unique in its corpus and contains no absolute path."""

    id: str
    text: str
    prompt_length: int = 0
    """Characters of the prompt at the start, which carries no loss."""


class DocumentStream(Protocol):
    """Documents from a position on."""

    def __iter__(self) -> Iterator[Document]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last document, as JSON. The next stream continues there."""


class CountingStream:
    """A stream that continues by reading again, and dropping, what came before."""

    def __init__(self, documents: Callable[[], Iterator[Document]], state: dict[str, Any] | None) -> None:
        self._count: int = state["documents"] if state else 0
        self._documents = islice(documents(), self._count, None)

    def __iter__(self) -> Iterator[Document]:
        for document in self._documents:
            self._count += 1
            yield document

    def state_dict(self) -> dict[str, Any]:
        return {"documents": self._count}


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus that exists and can be read."""

    fingerprint: Callable[[], dict[str, Any]]
    """Return hashes or revisions that identify the content of `documents`, as a cache key. Reads the files."""
    documents: Callable[[], Iterator[Document]]
    """Start from the first document, in an order that depends only on the content."""
    stream: Callable[[dict[str, Any] | None], DocumentStream] | None = None
    """Continue at a position without reading what comes before. None: such a way does not exist."""

    def open_stream(self, state: dict[str, Any] | None) -> DocumentStream:
        """Return the documents after a position, None for the start."""
        return self.stream(state) if self.stream else CountingStream(self.documents, state)


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """Facts for choosing a corpus."""

    license: str
    size: str
    source: str
    """Repository and pinned revision, or where the text is from."""
    public_results: str = ""
    """Results that others report for it."""
    hub_license: str = ""
    """The Hub's identifier of a license that allows sites to publish its tokens; empty: they do not publish them."""
