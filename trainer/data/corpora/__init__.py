"""Corpora: one module for each kind, and a line each in `KINDS`.

A spec names a corpus, `kind` or `kind:argument`:

    python-library               the documentation and source text of this Python installation
    files:books/*.jsonl.xz,more  text files by glob, folder or name
    fineweb-edu                  the 10-billion-token sample of FineWeb-Edu, from the Hugging Face Hub
    rephrased:owner/name@hash    a corpus rephrased by volunteers, from the Hub or a folder
    slimpajama                   SlimPajama, 627 billion tokens, from the Hub
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from trainer.data.corpora.document import Corpus, Document
from trainer.data.errors import CorpusError

__all__ = ["KINDS", "Corpus", "Document", "find_corpus", "open_corpus"]

# Each module has `build_corpus(argument: str) -> Corpus`, which raises CorpusError if there is nothing to read.
KINDS = {
    "files": "trainer.data.corpora.files",
    "fineweb-edu": "trainer.data.corpora.fineweb_edu",
    "python-library": "trainer.data.corpora.python_library",
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
