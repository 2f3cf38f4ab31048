"""`python-docs`: the documentation of Python 3.11 in pieces of about 3 kB, in a file of this package.

The text is the same on every machine, so a season that uses it has the same hash everywhere. It is the source of the
tutorial, FAQ, how-to guides, language reference and setup pages of Python 3.11.2, and of the library pages that fit
into 4.5 MB (drawn by the hash of their name). Copyright 2001-2023 Python Software Foundation, under the PSF License
Version 2 (https://docs.python.org/3.11/license.html); nothing but the division into pieces was changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainer.data.corpora import Corpus, CorpusInfo, Document
from trainer.errors import CorpusError
from trainer.protocol.files import hash_file

FILE = Path(__file__).with_name("python_docs.jsonl.xz")

INFO = CorpusInfo(license="PSF-2.0", size="4.5 MB of text", source="this package, from Python 3.11.2's documentation")


def build_corpus(argument: str) -> Corpus:
    if argument:
        raise CorpusError(f"python-docs takes no argument, but {argument!r} was given")
    return Corpus(lambda: {"files": [[FILE.name, hash_file(FILE)]]}, iterate_documents)


def iterate_documents() -> Iterator[Document]:
    from trainer.data.corpora.file_formats import read_documents

    return read_documents(FILE.name, FILE)
