"""`books`: six books in the public domain, in pieces of about 3 kB, in a file of this package.

The text is the same on every machine, so a season that uses it has the same hash everywhere. From Project Gutenberg,
without its header, license and name: Gulliver's Travels (829), Walden (205), Moby Dick (2701), The Voyage of the
Beagle (944), The Picture of Dorian Gray (4078) and volume 2 of The Works of Edgar Allan Poe (2148).
"""

from __future__ import annotations

from pathlib import Path

from trainer.data.corpora import files
from trainer.data.corpora.document import Corpus, CorpusInfo
from trainer.data.errors import CorpusError

FILE = Path(__file__).with_name("books.jsonl.xz")

INFO = CorpusInfo(license="public domain", size="4.5 MB of text", source="this package, from Project Gutenberg")


def build_corpus(argument: str) -> Corpus:
    if argument:
        raise CorpusError(f"books takes no argument, but {argument!r} was given")
    return files.build_corpus(str(FILE))
