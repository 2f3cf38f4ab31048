"""Small models behind a real OpenAI-compatible server, for tests of everything that talks to one.

`Words` rephrases: each common word has others that may stand for it, one of which is drawn, by temperature and seed. So
its outputs differ from time to time, speak of the same things as their source, and pass the checks in every style. It
is `trainer.rephrase.serve` that serves it, as it serves a model of transformers'. `Echo` and `Gibberish` are what bad
volunteers run.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trainer.rephrase.prompts import STYLES, prompt
from trainer.rephrase.serve import Asked, Engine, Service, Written

NAME = "words-1"
OTHERS = {
    word: others.split()
    for word, others in {
        "a": "one some",
        "all": "each every",
        "also": "too likewise",
        "and": "plus with",
        "are": "were remain",
        "as": "like while",
        "at": "near by",
        "be": "become stay",
        "but": "yet though",
        "by": "through with",
        "can": "may might",
        "came": "arrived went",
        "for": "to towards",
        "from": "out-of since",
        "good": "fine right",
        "great": "large big",
        "had": "held has",
        "have": "hold own",
        "if": "when should",
        "in": "within inside",
        "is": "was remains",
        "it": "this that",
        "land": "country ground",
        "make": "create build",
        "many": "several numerous",
        "more": "further additional",
        "new": "recent fresh",
        "not": "never hardly",
        "of": "from about",
        "on": "upon over",
        "one": "someone anybody",
        "or": "otherwise alternatively",
        "our": "their your",
        "said": "told spoke",
        "shall": "will must",
        "that": "which this",
        "the": "this that",
        "then": "next afterwards",
        "there": "here yonder",
        "they": "people these",
        "this": "that such",
        "thou": "you ye",
        "to": "towards for",
        "unto": "to towards",
        "upon": "on over",
        "was": "is became",
        "we": "they people",
        "were": "are became",
        "which": "that what",
        "will": "shall may",
        "with": "beside and",
        "you": "one people",
        "your": "our their",
    }.items()
}
WORD = re.compile(r"\w+|\W+")
SENTENCE = re.compile(r"(?<=[.!?])\s+")
CHANGED = 0.6
"""Of the words that have others, at temperature 1 or below."""


def read(asked: str) -> tuple[str, str]:
    """Return the style and the source that a prompt of ours is about."""
    for style in STYLES:
        opening = prompt(style, "")
        if asked.startswith(opening):
            return style, asked[len(opening) :].strip()
    raise ValueError("This is no prompt of ours.")


@dataclass
class Words:
    context: int = 4096
    """Tokens; a word is one."""
    seconds: float = 0.0
    """That a batch takes."""

    def count(self, asked: str) -> int:
        return len(asked.split())

    def write(self, asked: Sequence[Asked]) -> list[Written]:
        time.sleep(self.seconds)
        return [self._cut(self.rephrase(*read(one.prompt), random.Random(one.seed)), one) for one in asked]

    def _cut(self, text: str, asked: Asked) -> Written:
        words = text.split(" ")
        kept = " ".join(words[: asked.max_tokens])
        return Written(kept, "stop" if len(words) <= asked.max_tokens else "length", min(len(words), asked.max_tokens))

    def rephrase(self, style: str, source: str, dice: random.Random) -> str:
        if style != "qa":
            return self.changed(source, dice)
        sentences = SENTENCE.split(source)
        half = max(1, len(sentences) // 2)
        parts = [" ".join(sentences[:half]), " ".join(sentences[half:]) or source]
        return "\n".join(
            f"Question: What is said about {max(part.split(), key=len)}?\nAnswer: {self.changed(part, dice)}"
            for part in (" ".join(part.split()) for part in parts)
        )

    def changed(self, text: str, dice: random.Random) -> str:
        return "".join(self._other(word, dice) for word in WORD.findall(text))

    def _other(self, word: str, dice: random.Random) -> str:
        others = OTHERS.get(word.lower())
        if others is None or dice.random() > CHANGED:
            return word
        other = dice.choice(others).replace("-", " ")
        return other.capitalize() if word[0].isupper() else other


class Echo(Words):
    """Gives back what it was given."""

    def rephrase(self, style: str, source: str, dice: random.Random) -> str:
        return source


class Gibberish(Words):
    """Writes, and says nothing."""

    def rephrase(self, style: str, source: str, dice: random.Random) -> str:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return " ".join("".join(dice.choices(letters, k=dice.randint(2, 9))) for _ in source.split()) + "."


@contextmanager
def serving(engine: Engine | None = None, name: str = NAME, most: int = 16) -> Iterator[Service]:
    """A server of it on a real socket; `.address` is what `--endpoint` wants."""
    service = Service(engine or Words(), name, most=most).start()
    try:
        yield service
    finally:
        service.close()
