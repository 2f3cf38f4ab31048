"""Where text comes from: one module per kind of corpus, one line each in `KINDS`.

A corpus is named by a spec, `kind` or `kind:argument`:

    python-library               the documentation and source text of this Python installation
    files:books/*.jsonl.xz,more  text files by glob, folder or name
    fineweb-edu                  the 10-billion-token sample of FineWeb-Edu, from the Hugging Face Hub
    rephrased:owner/name@hash    what volunteers made of a corpus, from the Hub or a folder
    slimpajama                   SlimPajama, 627 billion tokens, from the Hub
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from trainer.data.corpora.document import Corpus, CorpusError, Document

__all__ = ["KINDS", "Corpus", "CorpusError", "Document", "find_corpus", "open_corpus"]

# Each module has `find(argument: str) -> Corpus`, which raises CorpusError when there is nothing to read.
KINDS = {
    "files": "trainer.data.corpora.files",
    "fineweb-edu": "trainer.data.corpora.fineweb_edu",
    "python-library": "trainer.data.corpora.python_library",
    "rephrased": "trainer.data.corpora.rephrased",
    "slimpajama": "trainer.data.corpora.slimpajama",
}


def find_corpus(spec: str) -> Corpus:
    """The corpus called `spec`. Raise CorpusError, one clear line, if there is none."""
    kind, _, argument = spec.partition(":")
    if kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise CorpusError(f"There is no corpus {spec!r}: it starts with one of {known} (for example files:books/*.txt)")
    return importlib.import_module(KINDS[kind]).find(argument)


def open_corpus(spec: str) -> Iterator[Document]:
    """All documents of the corpus, in its own order; duplicates included, empty texts left out.

    A corpus that is missing is refused here, at the call, with CorpusError; what cannot be read in it, at its document.
    """
    return find_corpus(spec).documents()
