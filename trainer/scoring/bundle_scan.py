"""Does an entry bring the held-out text along? Its files are read as text before its code runs.

Two questions. Does a file share runs of `RUN` words with the held-out text, more than chance or a licence's header
explain? (13 words are GPT-3's measure of contamination, arXiv 2005.14165, appendix C.) And is there data in it that no
source needs: words without end (base64 and the like), or thousands of numbers (token ids, hashes)? Either would let a
model look up what it should predict.

Not covered: text that is disguised as ordinary code. What such a model gains, `checks` measures: it recites.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.scoring.misbehavior import ContaminationError, EmbeddedDataError

NGRAM_WORDS = 13
"""Words."""

MAX_SHARED_NGRAMS = 50
"""So many different runs may be shared: a licence has some, a memory would need thousands."""

LONG_WORD_CHARACTERS = 200
"""Characters without white space that no source line has for long;"""

MAX_LONG_WORD_CHARACTERS = 2_000
"""characters in such words, all files together."""

MAX_NUMBERS = 5_000
"""Numbers, all files together."""

WORD = re.compile(r"\w+")
NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d_]*(?:\.\d*)?(?:e[+-]?\d+)?)", re.IGNORECASE)
LONG_WORD = re.compile(rf"\S{{{LONG_WORD_CHARACTERS},}}")


def scan_bundle(folder: Path, texts: Iterable[str]) -> None:
    """Raise `CarriesData` or `KnowsTheText` for the entry whose files lie in `folder`."""
    sources = [path.read_bytes().decode(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file()]
    unbroken = sum(len(word) for source in sources for word in LONG_WORD.findall(source))
    numbers = sum(len(NUMBER.findall(source)) for source in sources)
    if unbroken > MAX_LONG_WORD_CHARACTERS or numbers > MAX_NUMBERS:
        raise EmbeddedDataError(f"{unbroken} characters in long words, {numbers} numbers")
    if (shared := count_shared_ngrams(sources, texts)) > MAX_SHARED_NGRAMS:
        raise ContaminationError(f"{shared} runs of {NGRAM_WORDS} words")


def count_shared_ngrams(sources: Iterable[str], texts: Iterable[str]) -> int:
    """Return how many different runs of `RUN` words stand both in the sources and in the texts."""
    known: dict[str, int] = {}
    own = [hash_ngrams(encode_words(source, known, grow=True)) for source in sources]
    wanted = np.unique(np.concatenate([*own, np.empty(0, np.uint64)]))
    found: set[int] = set()
    for text in texts:
        found |= set(np.intersect1d(hash_ngrams(encode_words(text, known, grow=False)), wanted).tolist())
    return len(found)


def encode_words(text: str, known: dict[str, int], grow: bool) -> NDArray[np.uint64]:
    """A text's words as numbers, in small letters; 0 for a word that is not known."""
    words = (word.lower() for word in WORD.findall(text))
    found = [known.setdefault(word, len(known) + 1) if grow else known.get(word, 0) for word in words]
    return np.array(found, np.uint64)


def hash_ngrams(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of each run of `RUN` known words."""
    count = max(len(words) - NGRAM_WORDS + 1, 0)
    total, known = np.zeros(count, np.uint64), np.ones(count, bool)
    for i in range(NGRAM_WORDS):
        part = words[i : i + count]
        total = total * np.uint64(0x9E3779B97F4A7C15) + part  # wraps around, as a hash may
        known &= part > 0
    return total[known]
