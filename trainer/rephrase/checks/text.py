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

GRAM = 3
"""Characters: enough for stems, and whatever the inflection."""
RUN = 4
"""Words."""
STEM, CONTENT = 5, 4
"""Letters kept of a word, and letters of a word that has a content of its own."""
BITS = 21
"""Of a character."""
WORD = re.compile(r"\w+")
SOURCES = 64
"""That are remembered: of the latest batch, or of those that are being written just now."""


@dataclass(frozen=True)
class Grams:
    """A text's character 3-grams as numbers, each once and in order, with how often it is there."""

    numbers: np.ndarray
    counts: np.ndarray
    length: float
    """Of the vector of these counts."""

    def product(self, other: Grams) -> int:
        """Return the scalar product of two texts' counts."""
        import numpy as np

        _, ours, theirs = np.intersect1d(self.numbers, other.numbers, assume_unique=True, return_indices=True)
        return int(self.counts[ours] @ other.counts[theirs])


class Text:
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
    def grams(self) -> Grams:
        import numpy as np  # here: nodes that do not rephrase have none

        letters = np.frombuffer(self.plain.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
        size = max(len(letters) - GRAM + 1, 0)
        numbers = np.zeros(size, np.int64)
        for place in range(GRAM):
            numbers = numbers << BITS | letters[place : place + size]
        found, counts = np.unique(numbers, return_counts=True)
        return Grams(found, counts, math.sqrt(int(counts @ counts)))

    @cached_property
    def stems(self) -> set[str]:
        return {word[:STEM] for word in self.words if len(word) >= CONTENT}

    @cached_property
    def runs(self) -> set[tuple[str, ...]]:
        return set(self.stretches(RUN))

    def stretches(self, size: int) -> Iterator[tuple[str, ...]]:
        """Yield so many neighbouring words, from each place."""
        return zip(*(self.words[place:] for place in range(size)), strict=False)

    @cached_property
    def language(self) -> str:
        return languages.identify(self.raw)

    @cached_property
    def seems(self) -> str:
        """Its language at a glance."""
        return languages.glance(self.raw)


@lru_cache(maxsize=SOURCES)
def source_of(raw: str) -> Text:
    """Return a source, which comes again with its other styles."""
    return Text(raw)
