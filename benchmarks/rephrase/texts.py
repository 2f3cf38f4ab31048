"""Texts for packets and paraphrases by rule. Any two texts differ, and the checks accept the paraphrases."""

from __future__ import annotations

import random

WORDS = (
    "river garden letter winter captain teacher window forest bridge kitchen village harbour market engine doctor "
    "student mountain library soldier painter orchard chapel railway merchant sailor theatre hospital machine journal "
    "blanket carpenter lantern festival telescope laboratory museum granary shepherd violin ferry compass workshop"
)
VERBS = (
    "carried followed painted watched crossed repaired remembered measured described visited collected offered built "
    "borrowed questioned admired protected examined abandoned discovered"
)
ADJECTIVES = (
    "old quiet narrow bright wooden famous distant broken simple northern heavy curious golden empty gentle strange"
)
ENDS = (
    "in the early morning",
    "before the storm came",
    "after a long journey",
    "near the old mill",
    "because nobody else had asked",
    "while the children slept",
    "although it was forbidden",
    "for the first time in years",
    "as the newspapers reported",
    "with hardly any money left",
)
OTHER_WORDS = {"the": "this", "in": "during", "after": "following", "near": "close to", "before": "until"}
SENTENCES = 19
"""About 300 tokens."""
TEMPLATES = 64
NUMBER = "{n}"


def build_source(template: int) -> str:
    """Return a chunk of about 300 tokens with a placeholder for its number."""
    draw = random.Random(template)
    words, verbs, adjectives = WORDS.split(), VERBS.split(), ADJECTIVES.split()
    sentences = [
        f"The {draw.choice(adjectives)} {draw.choice(words)} {draw.choice(verbs)} the {draw.choice(words)} and a "
        f"{draw.choice(adjectives)} {draw.choice(words)} {draw.choice(ENDS)}."
        for _ in range(SENTENCES)
    ]
    return f"Report {NUMBER} tells of a {draw.choice(adjectives)} {draw.choice(words)}. " + " ".join(sentences)


def paraphrase_text(text: str, style: str) -> str:
    """Return a paraphrase in this style."""
    turned = [reword_sentence(one, len(style)) for one in text.split(". ")]
    if style != "qa":
        return f"It is said {style} that what follows is so. " + " ".join(turned)
    half = len(turned) // 2
    first, then = " ".join(turned[:half]), " ".join(turned[half:])
    return f"Question: What is told first?\nAnswer: {first}\nQuestion: What is told then?\nAnswer: {then}"


def reword_sentence(sentence: str, turn: int) -> str:
    words = [OTHER_WORDS.get(word.lower(), word) for word in sentence.rstrip(".").split()]
    turn = 2 + turn % 4
    return f"{' '.join(words[turn:])}, {' '.join(words[:turn])}.".capitalize()
