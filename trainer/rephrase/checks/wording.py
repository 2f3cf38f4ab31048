"""Checks of the wording alone: empty texts, refusals, echoes of the prompt, sentences that are cut off."""

from __future__ import annotations

import re
from functools import cache

from trainer.rephrase.checks.text import AnalyzedText
from trainer.rephrase.prompts import VERSIONS

REFUSALS = re.compile(
    r"""
    \s*(?:(?:i\s*(?:'|’)?\s*a?m\s+(?:very\s+|so\s+)?sorry|sorry|i\s+apologi[sz]e|my\s+apologies|unfortunately)\b[^.!?\n]{0,60}?)?
    \bi\s*(?:\s*(?:can(?:'|’)?t|cannot|can\s+not|won(?:'|’)t|will\s+not|could\s+not)
        |(?:'|’)?\s*a?m\s+(?:unable|not\s+able|not\s+comfortable|not\s+allowed))\s*(?:to\s+|with\s+)?
    (?:be\s+able\s+to\s+|\w+\s+)?
    (?:assist|help|fulfil\w*|comply|complet\w*|provid\w*|paraphras\w*|rephras\w*|rewrit\w*|reword\w*|restat\w*|process\w*
        |generat\w*|creat\w*|produc\w*|writ\w*|engag\w*|do\s+that|see\s+(?:any|the|a)\s+text|access\w*)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
AS_A_MODEL = re.compile(
    r"\bas\s+an?\s+(?:ai|artificial\s+intelligence|large\s+language|language)\b(?:\s+\w+)?", re.IGNORECASE
)
NO_TEXT = re.compile(
    r"\s*(?:please\s+(?:provide|share|paste|give\s+me)|(?:you\s+have\s+not|you\s+haven(?:'|’)t)\s+(?:provided|given)"
    r"|there\s+is\s+no\s+text)\b[^.!?\n]{0,60}\b(?:text|passage|paragraph|content)",
    re.IGNORECASE,
)
OPENING_CHARS = 160  # a refusal begins within this many characters
SENTENCE_ENDS = tuple(".!?…。！？।؟")
AFTER_END = "\"'”’»)]}*_` \n\t」』"
MIN_ECHO_WORDS = 6


def find_wording_problem(source: AnalyzedText, text: AnalyzedText, ended: str) -> str:
    """Return the first reason to reject a cleaned text; "" if there is none."""
    if not any(map(str.isalnum, text.raw)):
        return "empty"
    if is_refusal(text.raw) and not is_refusal(source.raw):
        return "refusal"
    if is_echo(text, source):
        return "echo"
    if ended == "length" or is_cut_off(text.raw, source.raw):
        return "cut_off"
    return ""


def is_refusal(text: str) -> bool:
    opening = text[:OPENING_CHARS]
    return any(pattern.match(opening) for pattern in (REFUSALS, NO_TEXT)) or bool(AS_A_MODEL.search(opening))


def is_echo(text: AnalyzedText, source: AnalyzedText) -> bool:
    """Return whether the text contains a whole sentence of any of our prompts that its source does not contain."""
    return any(prompt in text.normalized and prompt not in source.normalized for prompt in _list_prompt_sentences())


def is_cut_off(text: str, source: str) -> bool:
    """Return whether the text lacks an end of sentence that its source has."""
    return not _has_sentence_end(text) and _has_sentence_end(source)


def _has_sentence_end(text: str) -> bool:
    return text.rstrip(AFTER_END).endswith(SENTENCE_ENDS)


@cache
def _list_prompt_sentences() -> tuple[str, ...]:
    all_sentences = (text for styles in VERSIONS.values() for sentences in styles.values() for text in sentences)
    return tuple({AnalyzedText(text).normalized for text in all_sentences if len(text.split()) >= MIN_ECHO_WORDS})
