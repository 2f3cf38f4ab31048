"""Cuts a document into chunks of about 300 tokens, at sentence ends, and loses nothing: joined, they are the text.

Longer ones make a model leave things out ("more than 300 tokens often led to a loss of information", arXiv 2401.16380).
Chunks of one document are about as long as each other, so that no crumb is left at the end.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

CHUNK_TOKENS: Final = 300
MAX_SENTENCE_RATIO: Final = 1.5
"""Times that many: a sentence beyond is cut inside, after a clause, a word, or anywhere."""
TOKEN_CHARS: Final = 7
"""A word of so many letters is still one token, more or less: the sum is GPT-2's own count times 0.76 to 1.13 on the
documents and books that were looked at, 0.98 in the middle."""

WORD = re.compile(r"\w+|[^\w\s]")
PIECE = re.compile(rf"\w{{1,{TOKEN_CHARS}}}|[^\w\s]")
IDEOGRAPH = re.compile(r"[^\W\u0000-\u052f]")
"""Or a letter of another script that is about a token by itself: Latin, Greek and Cyrillic lie below."""
MARKS = r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+[」』”’）]*\s*"""
END = re.compile(MARKS + r"|\n\s*")
END_WRAPPED = re.compile(MARKS + r"|\n[^\S\n]*\n\s*")
WRAPPED = (45, 80)
"""Letters of a line in a text with hard wraps, where the end of a line means nothing and an empty line does."""
ABBREVIATED = re.compile(
    r"(?:^|[\s(\"'“‘])(?:[A-Z]|Mrs?|Ms|Drs?|Prof|St|Rev|Hon|Gen|Col|Capt|Lt|Sgt|Sr|Jr|Messrs|Mme|Mlle|vs|etc|e\.g|i\.e"
    r"|No|Nos|Vol|pp?|Fig|ca?f|[A-Z]\.(?:[A-Z]\.)*[A-Z])\.$"
)
CLAUSE = re.compile(r"[,;:—–]\s*|\s+")


def count_tokens(text: str) -> int:
    """Return about how many tokens a text is, without a tokenizer."""
    if text.isascii() or not IDEOGRAPH.search(text):
        return len(PIECE.findall(text))
    return sum(_count_word_tokens(word) for word in WORD.findall(text))


def _count_word_tokens(word: str) -> int:
    return len(word) if IDEOGRAPH.search(word) else -(-len(word) // TOKEN_CHARS)


def split_into_chunks(text: str, tokens: int = CHUNK_TOKENS) -> list[str]:
    """Return the chunks of a text; none for an empty one. Raise ValueError for less than one token a chunk."""
    if tokens < 1:
        raise ValueError("A chunk holds one token at least.")
    sentences = [
        piece for sentence in _split_at(text, _sentence_ends(text)) for piece in _split_long_sentence(sentence, tokens)
    ]
    if not sentences:
        return []
    ends = list(itertools.accumulate(map(count_tokens, sentences)))
    chunks = max(1, round(ends[-1] / tokens))
    cuts = sorted(
        {_find_nearest_end(ends, ends[-1] * number / chunks) for number in range(1, chunks)} - {len(sentences)}
    )
    return ["".join(sentences[first:last]) for first, last in itertools.pairwise([0, *cuts, len(sentences)])]


def _find_nearest_end(ends: list[int], wanted: float) -> int:
    """Return after how many sentences the text so far is nearest to so many tokens; at least one."""
    after = bisect.bisect_left(ends, wanted)
    before_is_nearer = after > 0 and wanted - ends[after - 1] <= ends[min(after, len(ends) - 1)] - wanted
    return after if before_is_nearer else after + 1


def _sentence_ends(text: str) -> Iterator[int]:
    for found in (END_WRAPPED if _is_hard_wrapped(text) else END).finditer(text):
        mark = text[found.start()]
        if mark != "." or not ABBREVIATED.search(text, max(0, found.start() - 12), found.start() + 1):
            yield found.end()


def _is_hard_wrapped(text: str) -> bool:
    lengths = [len(line) for line in text.splitlines() if line.strip()]
    return len(lengths) > 4 and sum(WRAPPED[0] <= length <= WRAPPED[1] for length in lengths) > len(lengths) / 2


def _split_at(text: str, ends: Iterable[int]) -> list[str]:
    return [text[first:last] for first, last in itertools.pairwise([0, *ends, len(text)]) if last > first]


def _split_long_sentence(sentence: str, tokens: int) -> Iterator[str]:
    """Yield a sentence, in pieces of at most that many tokens if it is a very long one."""
    if count_tokens(sentence) <= MAX_SENTENCE_RATIO * tokens:
        yield sentence
        return
    held, size = "", 0
    for piece in _split_at(sentence, (found.end() for found in CLAUSE.finditer(sentence))):
        for part in _split_unbroken(piece, tokens):
            more = count_tokens(part)
            if held and size + more > tokens:
                yield held
                held, size = "", 0
            held, size = held + part, size + more
    if held:
        yield held


def _split_unbroken(piece: str, tokens: int) -> Iterator[str]:
    """Yield a piece without a gap, broken anywhere if it has more than that many tokens: some scripts have no gaps."""
    if count_tokens(piece) <= tokens:
        yield piece
        return
    for first in range(0, len(piece), tokens):  # a character is at most one token
        yield piece[first : first + tokens]
