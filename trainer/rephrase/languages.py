"""In which language a text is, found offline: py3langid, whose model is in its wheel, pinned in requirements.lock.

Marco Lui and Timothy Baldwin, "langid.py: an off-the-shelf language identification tool" (ACL 2012).
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

UNKNOWN: Final = ""
SURE: Final = 0.5
"""As cc_net asks of the documents it takes."""
LETTERS: Final = 40
"""Of less nobody can say."""
LOADING = threading.Lock()
"""Or every thread would load a model of its own at the start."""


def identify(text: str) -> str:
    """Return the ISO 639-1 code of a text's language, `UNKNOWN` where that is not clear."""
    language, probability = scored(text)
    return language if probability >= SURE else UNKNOWN


def scored(text: str) -> tuple[str, float]:
    """Return the likeliest language and its probability."""
    if sum(map(str.isalpha, text[: 4 * LETTERS])) < LETTERS:
        return UNKNOWN, 0.0
    with LOADING:
        identifier = _identifier()
    language, probability = identifier.classify(text)
    return language, float(probability)


@cache
def _identifier() -> LanguageIdentifier:
    # Here: it takes most of a second, and numpy.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
