"""Assigns text to quality buckets, cut at the 30th and 60th percentile of a sample of the source, as in cc_net.

cc_net (arXiv 1911.00359) uses the perplexity of a 5-gram model of Wikipedia. This uses a character-trigram model of the
sample itself: "head" is text typical of the source. It detects lists, menus, code and random letters, not falsehoods.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from scheduler import storage
from scheduler.models import Blob

BUCKETS: Final = ("head", "middle", "tail")
PERCENTILES: Final = (0.3, 0.6)
SAMPLE_DOCUMENTS: Final = 1000
MAX_TRIGRAMS: Final = 40_000
"""Most frequent trigrams in the model; the others count as unseen."""
DIGITS = re.compile(r"\d")
SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class QualityModel:
    trigrams: Mapping[str, int]
    pairs: Mapping[str, int]
    """Counts of the trigrams' first two characters."""
    cuts: tuple[float, float]
    """Bits per character between the buckets."""

    def measure_bits(self, text: str) -> float:
        """Return bits per character, with add-one smoothing."""
        text, total = fold_text(text), 0.0
        for start in range(len(text) - 2):
            trigram = text[start : start + 3]
            total -= math.log2((self.trigrams.get(trigram, 0) + 1) / (self.pairs.get(trigram[:2], 0) + 256))
        return total / max(len(text) - 2, 1)

    def get_bucket(self, text: str) -> str:
        bits = self.measure_bits(text)
        return BUCKETS[sum(bits > cut for cut in self.cuts)]


def fold_text(text: str) -> str:
    return SPACES.sub(" ", DIGITS.sub("0", text.lower()))


def train_quality_model(texts: Iterable[str]) -> QualityModel:
    """Return the model of a sample, cut at its own percentiles. Raise ValueError if the sample is empty."""
    sample = list(texts)
    if not sample:
        raise ValueError("The source has no documents to measure quality on: the filters may be too strict.")
    counts: Counter[str] = Counter()
    for text in map(fold_text, sample):
        counts.update(text[start : start + 3] for start in range(len(text) - 2))
    trigrams = dict(counts.most_common(MAX_TRIGRAMS))
    pairs: Counter[str] = Counter()
    for trigram, count in trigrams.items():
        pairs[trigram[:2]] += count
    uncut = QualityModel(trigrams, dict(pairs), (0.0, 0.0))
    bits = sorted(uncut.measure_bits(text) for text in sample)
    low, high = (bits[min(int(percentile * len(bits)), len(bits) - 1)] for percentile in PERCENTILES)
    return QualityModel(trigrams, uncut.pairs, (low, high))


@lru_cache(maxsize=4)
def load_quality_model(sha256: str) -> QualityModel:
    fields = json.loads(storage.read_blob(Blob.objects.get(sha256=sha256)))
    return QualityModel(fields["trigrams"], fields["pairs"], tuple(fields["cuts"]))
