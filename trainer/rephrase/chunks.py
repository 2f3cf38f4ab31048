"""Splits a document at sentence ends into chunks of about 300 tokens. Joined, the chunks are the document again.

Models leave things out of longer chunks ("more than 300 tokens often led to a loss of information", arXiv 2401.16380).
The chunks of a document have similar lengths, so the last one is not a short remainder.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

CHUNK_TOKENS: Final = 300
MAX_SENTENCE_RATIO: Final = 1.5
"""A sentence of more than this many chunks' tokens is split, after a clause, after a word, or anywhere."""
TOKEN_CHARS: Final = 7
"""Characters of a word per token. The sum is 0.76 to 1.13 times GPT-2's count on a sample of documents and books, with
a median of 0.98."""

WORD = re.compile(r"\w+|[^\w\s]")
PIECE = re.compile(rf"\w{{1,{TOKEN_CHARS}}}|[^\w\s]")
IDEOGRAPH = re.compile(r"[^\W\u0000-\u052f]")
"""A letter that is about one token: of any script but Latin, Greek and Cyrillic, which have lower code points."""
MARKS = r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+[」』”’）]*\s*"""
END = re.compile(MARKS + r"|\n\s*")
END_WRAPPED = re.compile(MARKS + r"|\n[^\S\n]*\n\s*")
WRAPPED = (45, 80)  # line lengths of a hard-wrapped text, in which empty lines end a sentence and line ends do not
ABBREVIATED = re.compile(
    r"(?:^|[\s(\"'“‘])(?:[A-Z]|Mrs?|Ms|Drs?|Prof|St|Rev|Hon|Gen|Col|Capt|Lt|Sgt|Sr|Jr|Messrs|Mme|Mlle|vs|etc|e\.g|i\.e"
    r"|No|Nos|Vol|pp?|Fig|ca?f|[A-Z]\.(?:[A-Z]\.)*[A-Z])\.$"
)
CLAUSE = re.compile(r"[,;:—–]\s*|\s+")


def count_tokens(text: str) -> int:
    """Estimate the number of tokens of a text without a tokenizer."""
    if text.isascii() or not IDEOGRAPH.search(text):
        return len(PIECE.findall(text))
    return sum(_count_word_tokens(word) for word in WORD.findall(text))


def _count_word_tokens(word: str) -> int:
    return len(word) if IDEOGRAPH.search(word) else -(-len(word) // TOKEN_CHARS)


def split_into_chunks(text: str, tokens: int = CHUNK_TOKENS) -> list[str]:
    """Return the chunks of a text; none for an empty text. Raise ValueError if `tokens` is below 1."""
    if tokens < 1:
        raise ValueError("A chunk needs at least one token.")
    sentences = _split_at(text, _find_sentence_ends(text))
    sentences = [piece for sentence in sentences for piece in _split_long_sentence(sentence, tokens)]
    if not sentences:
        return []
    ends = list(itertools.accumulate(map(count_tokens, sentences)))
    chunks = max(1, round(ends[-1] / tokens))
    targets = (ends[-1] * number / chunks for number in range(1, chunks))
    cuts = sorted({0, len(sentences)} | {_find_nearest_end(ends, target) for target in targets})
    return ["".join(sentences[first:last]) for first, last in itertools.pairwise(cuts)]


def _find_nearest_end(ends: list[int], target: float) -> int:
    """Return how many sentences are nearest to `target` tokens; at least 1. `ends`: running totals of tokens."""
    after = bisect.bisect_left(ends, target)
    is_before_nearer = after > 0 and target - ends[after - 1] <= ends[min(after, len(ends) - 1)] - target
    return after if is_before_nearer else after + 1


def _find_sentence_ends(text: str) -> Iterator[int]:
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
    """Yield a sentence, or if it is very long, pieces of at most `tokens` tokens."""
    if count_tokens(sentence) <= MAX_SENTENCE_RATIO * tokens:
        yield sentence
        return
    piece, size = "", 0
    for clause in _split_at(sentence, (found.end() for found in CLAUSE.finditer(sentence))):
        for part in _split_unbroken(clause, tokens):
            part_tokens = count_tokens(part)
            if piece and size + part_tokens > tokens:
                yield piece
                piece, size = "", 0
            piece, size = piece + part, size + part_tokens
    if piece:
        yield piece


def _split_unbroken(piece: str, tokens: int) -> Iterator[str]:
    """Yield text without spaces, split anywhere if it has more than `tokens` tokens: some scripts have no spaces."""
    if count_tokens(piece) <= tokens:
        yield piece
        return
    for first in range(0, len(piece), tokens):  # a character is at most one token
        yield piece[first : first + tokens]
