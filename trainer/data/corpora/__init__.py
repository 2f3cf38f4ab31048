"""Corpora: one module for each kind, and a line each in `KINDS`.

A spec names a corpus, `kind` or `kind:argument`:

    python-docs                  the documentation of Python 3.11, part of this package: the same on every machine
    python-packages              the documentation and source text of pinned packages: the same for every Python
    files:books/*.jsonl.xz,more  text files by glob, folder or name
    climbmix                     ClimbMix, 400 billion tokens, from the Hugging Face Hub; not for commercial use
    dclm-baseline                100 billion tokens of DCLM-baseline, from the Hub
    finephrase:faq               FineWeb-Edu rephrased: faq, math, table or tutorial, from the Hub
    fineweb-edu:sample-100BT     a sample of FineWeb-Edu: sample-10BT or sample-100BT, from the Hub
    rephrased:owner/name@hash    a corpus rephrased by volunteers, from the Hub or a folder
    slimpajama                   SlimPajama, 627 billion tokens, from the Hub
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from trainer.errors import CorpusError

# --- the interface of all kinds ---------------------------------------------------------------------------------------


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


__all__ = ["KINDS", "Corpus", "CorpusInfo", "Document", "describe_corpora", "find_corpus", "open_corpus"]

# Each module has `build_corpus(argument: str) -> Corpus`, which raises CorpusError if there is nothing to read, and
# `INFO`, a CorpusInfo.
KINDS = {
    "climbmix": "trainer.data.corpora.climbmix",
    "dclm-baseline": "trainer.data.corpora.dclm_baseline",
    "files": "trainer.data.corpora.files",
    "finephrase": "trainer.data.corpora.finephrase",
    "fineweb-edu": "trainer.data.corpora.fineweb_edu",
    "python-docs": "trainer.data.corpora.python_docs",
    "python-packages": "trainer.data.corpora.python_packages",
    "rephrased": "trainer.data.corpora.rephrased",
    "slimpajama": "trainer.data.corpora.slimpajama",
}


def find_corpus(spec: str) -> Corpus:
    """Return the corpus that `spec` names. Raise CorpusError if it does not exist."""
    kind, _, argument = spec.partition(":")
    if kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise CorpusError(f"There is no corpus {spec!r}: it starts with one of {known} (for example files:books/*.txt)")
    return importlib.import_module(KINDS[kind]).build_corpus(argument)


def open_corpus(spec: str) -> Iterator[Document]:
    """Yield the documents of a corpus in its own order, with duplicates, without empty texts.

    A missing corpus raises CorpusError at the call, an unreadable document when it is reached.
    """
    return find_corpus(spec).documents()


def describe_corpora() -> dict[str, CorpusInfo]:
    """Return license, size and source of every kind of corpus."""
    return {kind: importlib.import_module(module).INFO for kind, module in KINDS.items()}
