"""How good is a text? Three buckets, cut at the 30th and the 60th percentile of a sample of the source, as in cc_net.

cc_net (arXiv 1911.00359) takes the perplexity of a 5-gram model that was trained on Wikipedia. Ours is a model of
character trigrams, counted on the sample itself: "head" is what reads like most of the source. It finds lists, menus,
code and letter salad; it knows nothing of what is true or well said.
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
CUTS: Final = (0.3, 0.6)
SAMPLE: Final = 1000
"""Documents."""
COMMONEST: Final = 40_000
"""Trigrams that are kept; the others are as good as never seen."""
DIGITS = re.compile(r"\d")
SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Quality:
    trigrams: Mapping[str, int]
    pairs: Mapping[str, int]
    """Of the trigrams' first two characters."""
    cuts: tuple[float, float]

    def bits(self, text: str) -> float:
        """Return bits a character, by the model with one added to each count."""
        folded, total = fold(text), 0.0
        for start in range(len(folded) - 2):
            gram = folded[start : start + 3]
            total -= math.log2((self.trigrams.get(gram, 0) + 1) / (self.pairs.get(gram[:2], 0) + 256))
        return total / max(len(folded) - 2, 1)

    def bucket(self, text: str) -> str:
        bits = self.bits(text)
        return BUCKETS[sum(bits > cut for cut in self.cuts)]

    def dump(self) -> bytes:
        told = {"trigrams": dict(self.trigrams), "pairs": dict(self.pairs), "cuts": self.cuts}
        return json.dumps(told, sort_keys=True).encode()


def fold(text: str) -> str:
    return SPACES.sub(" ", DIGITS.sub("0", text.lower()))


def learn(texts: Iterable[str]) -> Quality:
    """Return the model of a sample, with its own percentiles for cuts. Raise ValueError for an empty one."""
    sample = list(texts)
    if not sample:
        raise ValueError("Nothing of the source is left to measure quality by: are the filters too strict?")
    counted: Counter[str] = Counter()
    for text in sample:
        folded = fold(text)
        counted.update(folded[start : start + 3] for start in range(len(folded) - 2))
    trigrams = dict(counted.most_common(COMMONEST))
    pairs: Counter[str] = Counter()
    for gram, count in trigrams.items():
        pairs[gram[:2]] += count
    uncut = Quality(trigrams, pairs, (0.0, 0.0))
    found = sorted(uncut.bits(text) for text in sample)
    low, high = (found[min(int(cut * len(found)), len(found) - 1)] for cut in CUTS)
    return Quality(trigrams, pairs, (low, high))


@lru_cache(maxsize=4)
def load(sha256: str) -> Quality:
    """Return a model that was kept."""
    told = json.loads(storage.read_blob(Blob.objects.get(sha256=sha256)))
    low, high = told["cuts"]
    return Quality(told["trigrams"], told["pairs"], (low, high))
