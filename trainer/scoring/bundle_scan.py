"""Scan of an entry's files for held-out text and bulk data, before its code runs.

Two checks. Does a file share n-grams of `NGRAM_WORDS` words with the held-out text, more than chance or a license
header explains? (13 words are GPT-3's measure of contamination, arXiv 2005.14165, appendix C.) And does it contain data
that no source needs: very long words (base64 and the like), or thousands of numbers (token ids, hashes)? Either would
let a model look up what it should predict.

Not covered: text that is disguised as ordinary code. `cheat_detection` measures what such a model gains (memorization).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.scoring.misbehavior import ContaminationError, EmbeddedDataError

NGRAM_WORDS = 13
MAX_SHARED_NGRAMS = 50
"""Distinct n-grams that may be shared: a license shares some, a memorized text thousands."""
LONG_WORD_CHARACTERS = 200  # characters without white space; longer words are rare in source code
MAX_LONG_WORD_CHARACTERS = 2_000  # in such words, all files together
MAX_NUMBERS = 5_000  # all files together
WORD = re.compile(r"\w+")
NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d_]*(?:\.\d*)?(?:e[+-]?\d+)?)", re.IGNORECASE)
LONG_WORD = re.compile(rf"\S{{{LONG_WORD_CHARACTERS},}}")


def scan_bundle(folder: Path, texts: Iterable[str]) -> None:
    """Raise `EmbeddedDataError` or `ContaminationError` for the entry whose files are in `folder`."""
    sources = [path.read_bytes().decode(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file()]
    long = sum(len(word) for source in sources for word in LONG_WORD.findall(source))
    numbers = sum(len(NUMBER.findall(source)) for source in sources)
    if long > MAX_LONG_WORD_CHARACTERS or numbers > MAX_NUMBERS:
        raise EmbeddedDataError(f"{long} characters in long words, {numbers} numbers")
    if (shared := count_shared_ngrams(sources, texts)) > MAX_SHARED_NGRAMS:
        raise ContaminationError(f"{shared} runs of {NGRAM_WORDS} words")


def count_shared_ngrams(sources: Iterable[str], texts: Iterable[str]) -> int:
    """Return how many different n-grams occur both in the sources and in the texts."""
    vocabulary: dict[str, int] = {}
    hashes = [hash_ngrams(encode_words(source, vocabulary, grow=True)) for source in sources]
    source_hashes = np.unique(np.concatenate([*hashes, np.empty(0, np.uint64)]))
    shared: set[int] = set()
    for text in texts:
        shared |= set(np.intersect1d(hash_ngrams(encode_words(text, vocabulary, grow=False)), source_hashes).tolist())
    return len(shared)


def encode_words(text: str, vocabulary: dict[str, int], grow: bool) -> NDArray[np.uint64]:
    """Return the ids of a text's lower-cased words; 0 for a word outside the vocabulary. `grow` adds new words."""
    words = (word.lower() for word in WORD.findall(text))
    ids = [vocabulary.setdefault(word, len(vocabulary) + 1) if grow else vocabulary.get(word, 0) for word in words]
    return np.array(ids, np.uint64)


def hash_ngrams(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each n-gram without unknown words."""
    count = max(len(words) - NGRAM_WORDS + 1, 0)
    total, known = np.zeros(count, np.uint64), np.ones(count, bool)
    for i in range(NGRAM_WORDS):
        part = words[i : i + count]
        total = total * np.uint64(0x9E3779B97F4A7C15) + part  # overflow wraps around
        known &= part > 0
    return total[known]
