"""Offline language identification."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from tests.support.genesis import texts
from trainer.rephrase.languages import UNKNOWN, identify_language

SENTENCES = {
    "en": "The ship left the harbour in the morning, and nobody knew when it would come back.",
    "de": "Das Schiff verließ am Morgen den Hafen, und niemand wusste, wann es zurückkommen würde.",
    "fr": "Le navire quitta le port au matin, et personne ne savait quand il reviendrait.",
    "es": "El barco dejó el puerto por la mañana, y nadie sabía cuándo volvería.",
    "ru": "Корабль вышел из гавани утром, и никто не знал, когда он вернётся.",
    "zh": "那艘船早上离开了港口，没有人知道它什么时候会回来，大家都在岸边等着它，等了很久很久也没有看到它的影子。",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_single_sentence_identifies_language(language: str) -> None:
    assert identify_language(SENTENCES[language]) == language


def test_old_english_is_identified_as_english() -> None:
    assert {identify_language(text) for text in texts(100)} == {"en"}


@pytest.mark.parametrize("text", ["", "Yes.", "1,024 + 2,048 = 3,072", "???"])
def test_few_letters_are_unknown(text: str) -> None:
    assert identify_language(text) == UNKNOWN


def test_library_has_pinned_version() -> None:
    assert version("py3langid") == "0.4.0"
