"""A text and what the checks measure of it: language, words, stems, similarity to a source, and repetition."""

from __future__ import annotations

import hashlib
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from trainer.rephrase import languages
from trainer.rephrase.chunks import count_tokens

if TYPE_CHECKING:
    import numpy as np

TRIGRAM_CHARS = 3  # long enough for word stems, and independent of inflection
NGRAM_WORDS = 4
LOOP_WORDS = 10  # Gopher's longest n-gram: ordinary prose hardly repeats one
STEM_CHARS, MIN_WORD_CHARS = 5, 4  # characters that a stem keeps, and characters of a content word
CHAR_BITS = 21  # bits of a Unicode code point
WORD = re.compile(r"\w+")
CACHED_SOURCES = 64  # sources of the latest batch, or of the outputs that are being generated


@dataclass(frozen=True)
class TrigramCounts:
    """The distinct character trigrams of a text, as sorted integers, and how often each occurs."""

    codes: np.ndarray
    counts: np.ndarray
    norm: float  # Euclidean norm of the counts

    def dot(self, other: TrigramCounts) -> int:
        """Return the dot product of the counts of two texts."""
        import numpy as np

        _, self_index, other_index = np.intersect1d(self.codes, other.codes, assume_unique=True, return_indices=True)
        return int(self.counts[self_index] @ other.counts[other_index])


class AnalyzedText:
    def __init__(self, raw: str) -> None:
        self.raw = raw

    @cached_property
    def words(self) -> list[str]:
        """Case-folded words without punctuation."""
        return WORD.findall(self.raw.casefold())

    @cached_property
    def normalized(self) -> str:
        """The words, with a space before and after each."""
        return f" {' '.join(self.words)} "

    @cached_property
    def key(self) -> str:
        """A hash of the letters and digits: equal for texts that differ only in case, spaces and punctuation.

        16 hex digits (64 bits).
        """
        letters = "".join(self.words).replace("_", "")
        return hashlib.sha256(letters.encode()).hexdigest()[:16]

    @cached_property
    def tokens(self) -> int:
        return count_tokens(self.raw)

    @cached_property
    def trigrams(self) -> TrigramCounts:
        import numpy as np  # here: nodes that do not rephrase may lack it

        letters = np.frombuffer(self.normalized.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
        size = max(len(letters) - TRIGRAM_CHARS + 1, 0)
        codes = np.zeros(size, np.int64)
        for offset in range(TRIGRAM_CHARS):
            codes = codes << CHAR_BITS | letters[offset : offset + size]
        distinct, counts = np.unique(codes, return_counts=True)
        return TrigramCounts(distinct, counts, math.sqrt(int(counts @ counts)))

    @cached_property
    def stems(self) -> set[str]:
        return {word[:STEM_CHARS] for word in self.words if len(word) >= MIN_WORD_CHARS}

    @cached_property
    def ngrams(self) -> set[tuple[str, ...]]:
        return set(self.iter_ngrams(NGRAM_WORDS))

    def iter_ngrams(self, size: int) -> Iterator[tuple[str, ...]]:
        """Yield every sequence of `size` consecutive words."""
        return zip(*(self.words[offset:] for offset in range(size)), strict=False)

    @cached_property
    def loop_share(self) -> float:
        """The share of the words' characters in word 10-grams that occurred before: 0 to 1.

        Gopher's measure (arXiv 2112.11446, table A1), counted as datatrove's `GopherRepetitionFilter` counts: after a
        repeated n-gram, the next one begins behind it.
        """
        seen, repeated, start = set(), 0, 0
        while start <= len(self.words) - LOOP_WORDS:
            ngram = tuple(self.words[start : start + LOOP_WORDS])
            if ngram in seen:
                repeated += sum(map(len, ngram))
                start += LOOP_WORDS
            else:
                seen.add(ngram)
                start += 1
        return repeated / max(1, sum(map(len, self.words)))

    @cached_property
    def language(self) -> str:
        return languages.identify_language(self.raw)

    @cached_property
    def guessed_language(self) -> str:
        return languages.guess_language(self.raw)


@lru_cache(maxsize=CACHED_SOURCES)
def analyze_source(raw: str) -> AnalyzedText:
    """Return a source, cached for the outputs in its other styles."""
    return AnalyzedText(raw)


MIN_STEMS = 16  # stems that a source needs for `measure_subject`


def measure_meaning(source: AnalyzedText, text: AnalyzedText) -> float:
    """Return the cosine similarity of character trigram counts, ignoring case and punctuation: 0 to 1."""
    product = source.trigrams.dot(text.trigrams)
    return product / (source.trigrams.norm * text.trigrams.norm) if product else 0.0


def measure_subject(source: AnalyzedText, text: AnalyzedText) -> float:
    """Return the cosine similarity of the two sets of stems: 0 to 1; 1 if the source has too few stems.

    Long texts of one language share most trigrams: with 300 tokens, unrelated pages of C4 typically reach 0.57 by
    `measure_meaning`. By this measure they reach 0.10, and one in two hundred 0.29; the Bible in Basic English compared
    with the King James Version reaches at least 0.36.
    """
    if len(source.stems) < MIN_STEMS:
        return 1.0
    shared, product = len(source.stems & text.stems), len(source.stems) * len(text.stems)
    return shared / math.sqrt(product) if product else 0.0


def measure_copied(source: AnalyzedText, text: AnalyzedText) -> float:
    """Return the share of the text's word 4-grams that occur in the source. A shorter text is one n-gram."""
    size = min(NGRAM_WORDS, len(text.words))
    if size == 0:
        return 0.0
    source_ngrams = source.ngrams if size == NGRAM_WORDS else set(source.iter_ngrams(size))
    return sum(map(source_ngrams.__contains__, text.iter_ngrams(size))) / (len(text.words) - size + 1)


def count_ngrams(text: AnalyzedText) -> int:
    """Return the number of word 4-grams in a text."""
    return max(0, len(text.words) - NGRAM_WORDS + 1)


def measure_repetition(text: str) -> float:
    """Return the zlib compression ratio, compressed over original size: English prose 0.4 to 0.7, loops below 0.2.

    A text of which only a part is a loop stays above: `AnalyzedText.loop_share` measures those.
    """
    content = text.encode(errors="replace")
    return len(zlib.compress(content, 6)) / len(content) if content else 1.0
