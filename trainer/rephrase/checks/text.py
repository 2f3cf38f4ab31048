"""A text, and what is found out about it, each once: the checks ask for the same, and four outputs share a source."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from trainer.rephrase import languages
from trainer.rephrase.chunks import count_tokens

if TYPE_CHECKING:
    import numpy as np

TRIGRAM_CHARS = 3
"""Characters: enough for stems, and whatever the inflection."""
NGRAM_WORDS = 4
"""Words."""
STEM_CHARS, MIN_WORD_CHARS = 5, 4
"""Letters kept of a word, and letters of a word that has a content of its own."""
CHAR_BITS = 21
"""Of a character."""
WORD = re.compile(r"\w+")
CACHED_SOURCES = 64
"""That are remembered: of the latest batch, or of those that are being written just now."""


@dataclass(frozen=True)
class TrigramCounts:
    """A text's character 3-grams as numbers, each once and in order, with how often it is there."""

    numbers: np.ndarray
    counts: np.ndarray
    length: float
    """Of the vector of these counts."""

    def product(self, other: TrigramCounts) -> int:
        """Return the scalar product of two texts' counts."""
        import numpy as np

        _, ours, theirs = np.intersect1d(self.numbers, other.numbers, assume_unique=True, return_indices=True)
        return int(self.counts[ours] @ other.counts[theirs])


class AnalyzedText:
    def __init__(self, raw: str) -> None:
        self.raw = raw

    @cached_property
    def words(self) -> list[str]:
        """Case folded, without punctuation."""
        return WORD.findall(self.raw.casefold())

    @cached_property
    def plain(self) -> str:
        """Its words, with a space before and after each."""
        return f" {' '.join(self.words)} "

    @cached_property
    def key(self) -> str:
        """The same for texts that differ in case, spaces and punctuation only: 64 bits, as hex."""
        letters = "".join(self.words).replace("_", "")
        return hashlib.sha256(letters.encode()).hexdigest()[:16]

    @cached_property
    def tokens(self) -> int:
        return count_tokens(self.raw)

    @cached_property
    def grams(self) -> TrigramCounts:
        import numpy as np  # here: nodes that do not rephrase have none

        letters = np.frombuffer(self.plain.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
        size = max(len(letters) - TRIGRAM_CHARS + 1, 0)
        numbers = np.zeros(size, np.int64)
        for place in range(TRIGRAM_CHARS):
            numbers = numbers << CHAR_BITS | letters[place : place + size]
        found, counts = np.unique(numbers, return_counts=True)
        return TrigramCounts(found, counts, math.sqrt(int(counts @ counts)))

    @cached_property
    def stems(self) -> set[str]:
        return {word[:STEM_CHARS] for word in self.words if len(word) >= MIN_WORD_CHARS}

    @cached_property
    def runs(self) -> set[tuple[str, ...]]:
        return set(self.stretches(NGRAM_WORDS))

    def stretches(self, size: int) -> Iterator[tuple[str, ...]]:
        """Yield so many neighbouring words, from each place."""
        return zip(*(self.words[place:] for place in range(size)), strict=False)

    @cached_property
    def language(self) -> str:
        return languages.identify_language(self.raw)

    @cached_property
    def seems(self) -> str:
        """Its language at a glance."""
        return languages.guess_language(self.raw)


@lru_cache(maxsize=CACHED_SOURCES)
def analyze_source(raw: str) -> AnalyzedText:
    """Return a source, which comes again with its other styles."""
    return AnalyzedText(raw)
