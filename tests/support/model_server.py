"""Small models behind the real completion server, for tests of everything that talks to a language model.

`SynonymModel` replaces common words by synonyms, drawn by temperature and seed. Its outputs therefore differ from each
other, keep the source's topic and pass the checks in every style. `EchoModel` stands for a bad volunteer.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trainer.rephrase.backends import Completion
from trainer.rephrase.backends.protocol import CompletionModel, CompletionRequest
from trainer.rephrase.prompts import STYLES, build_prompt
from trainer.rephrase.serve import CompletionServer

NAME = "words-1"
SYNONYM_LIST = """
a: one some; all: each every; also: too likewise; and: plus with; are: were remain; as: like while; at: near by; be:
become stay; but: yet though; by: through with; can: may might; came: arrived went; for: to towards; from: out-of
since; good: fine right; great: large big; had: held has; have: hold own; if: when should; in: within inside; is:
was remains; it: this that; land: country ground; make: create build; many: several numerous; more: further
additional; new: recent fresh; not: never hardly; of: from about; on: upon over; one: someone anybody; or: otherwise
alternatively; our: their your; said: told spoke; shall: will must; that: which this; the: this that; then: next
afterwards; there: here yonder; they: people these; this: that such; thou: you ye; to: towards for; unto: to
towards; upon: on over; was: is became; we: they people; were: are became; which: that what; will: shall may; with:
beside and; you: one people; your: our their
"""
SYNONYMS: dict[str, list[str]] = {
    word: synonyms.split() for word, synonyms in re.findall(r"(\w+):\s([^;]+)", SYNONYM_LIST)
}
WORD = re.compile(r"\w+|\W+")
SENTENCE_GAP = re.compile(r"(?<=[.!?])\s+")
REPLACED_SHARE = 0.6
"""Of the words with synonyms."""


def parse_prompt(prompt: str) -> tuple[str, str]:
    """Return style and source of a prompt of `trainer.rephrase.prompts`."""
    for style in STYLES:
        opening = build_prompt(style, "")
        if prompt.startswith(opening):
            return style, prompt[len(opening) :].strip()
    raise ValueError("This is not a rephrasing prompt.")


@dataclass
class SynonymModel:
    context: int = 4096
    """Tokens; a word is one token."""
    seconds: float = 0.0
    """Duration of a batch."""

    def count_tokens(self, prompt: str) -> int:
        return len(prompt.split())

    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        time.sleep(self.seconds)
        texts = [self.rephrase(*parse_prompt(one.prompt), random.Random(one.seed)) for one in requests]
        return [truncate(text, request.max_tokens) for text, request in zip(texts, requests, strict=True)]

    def rephrase(self, style: str, source: str, rng: random.Random) -> str:
        if style != "qa":
            return replace_words(source, rng)
        sentences = SENTENCE_GAP.split(source)
        half = max(1, len(sentences) // 2)
        parts = [" ".join(sentences[:half]), " ".join(sentences[half:]) or source]
        return "\n".join(
            f"Question: What is said about {max(part.split(), key=len)}?\nAnswer: {replace_words(part, rng)}"
            for part in (" ".join(part.split()) for part in parts)
        )


class EchoModel(SynonymModel):
    """Returns the source unchanged."""

    def rephrase(self, style: str, source: str, rng: random.Random) -> str:
        return source


def truncate(text: str, max_tokens: int) -> Completion:
    words = text.split(" ")
    is_complete = len(words) <= max_tokens
    return Completion(" ".join(words[:max_tokens]), "stop" if is_complete else "length", min(len(words), max_tokens))


def replace_words(text: str, rng: random.Random) -> str:
    return "".join(replace_word(word, rng) for word in WORD.findall(text))


def replace_word(word: str, rng: random.Random) -> str:
    synonyms = SYNONYMS.get(word.lower())
    if synonyms is None or rng.random() > REPLACED_SHARE:
        return word
    synonym = rng.choice(synonyms).replace("-", " ")
    return synonym.capitalize() if word[0].isupper() else synonym


@contextmanager
def serve_model(
    model: CompletionModel | None = None, name: str = NAME, port: int = 0, batch_size: int = 16
) -> Iterator[CompletionServer]:
    """Run a completion server on a real socket; `.url` is the value for `--endpoint`."""
    server = CompletionServer(model or SynonymModel(), name, port, batch_size)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
