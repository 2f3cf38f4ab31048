"""Checks of a text's wording, and of the form that its style asks for, such as a table or numbered steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from trainer.rephrase.checks.talk import is_talk
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


def find_wording_problem(source: AnalyzedText, text: AnalyzedText, ended: str, style: str) -> str:
    """Return the first reason to reject a cleaned text; "" if there is none."""
    if not any(map(str.isalnum, text.raw)):
        return "empty"
    if is_refusal(text.raw) and not is_refusal(source.raw):
        return "refusal"
    if is_echo(text, source):
        return "echo"
    if is_talk(text.raw, source.raw, style):
        return "talk"
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


PAIR = re.compile(r"^[^\w\n]*(question|answer)[ ]?\d{0,3}[*_]{0,2}\s*[:：][*_]{0,2}", re.IGNORECASE | re.MULTILINE)
PROBLEM = re.compile(
    r"[^\w\n]*problem[*_]{0,2}\s*[:：](?P<problem>.*?)^[^\w\n]*solution[*_]{0,2}\s*[:：](?P<solution>.*)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
TABLE_ROW = re.compile(r"^[ \t]*\|.*\|[ \t]*$", re.MULTILINE)
DASHES = re.compile(r"[ \t]*\|(?:[ \t]*:?-+:?[ \t]*\|)+[ \t]*")
STEP = re.compile(
    r"^[^\w\n]*(?:step[ ]+(\d{1,3})[*_]{0,2}[.:)]|(\d{1,3})[*_]{0,2}[.)][*_]{0,2}[ \t])", re.IGNORECASE | re.MULTILINE
)
CELL_END = re.compile(r"(?<!\\)\|")
MIN_FACT_ROWS = 2
MIN_STEPS = 2


def find_form_violation(style: str, text: str) -> str:
    """Return the reason to reject a text of this style, a key of `checks.REASONS`; "" if its form is right."""
    if style not in FORMS:
        return ""
    reason, has_form = FORMS[style]
    return "" if has_form(text) else reason


def has_question_answer_pairs(text: str) -> bool:
    """Return whether the text consists of two or more questions, each followed by its answer, with nothing before."""
    marks = list(PAIR.finditer(text))
    if len(marks) < 4 or len(marks) % 2 or text[: marks[0].start()].strip():
        return False
    kinds = [mark[1].lower() for mark in marks]
    starts, ends = [mark.end() for mark in marks], [*(mark.start() for mark in marks[1:]), len(text)]
    are_filled = all(any(map(str.isalnum, text[start:end])) for start, end in zip(starts, ends, strict=True))
    return are_filled and kinds == ["question", "answer"] * (len(kinds) // 2)


def has_solved_problem(text: str) -> bool:
    """Return whether the text is a problem followed by its solution, both with words."""
    match = PROBLEM.fullmatch(text)
    return match is not None and all(any(map(str.isalnum, part)) for part in match.groups())


def has_table(text: str) -> bool:
    """Return whether the text has a table in Markdown: a header, dashes, and two or more rows of as many cells."""
    rows = TABLE_ROW.findall(text)
    if len(rows) < 2 + MIN_FACT_ROWS or not DASHES.fullmatch(rows[1]):
        return False
    return len({len(CELL_END.findall(row)) for row in rows}) == 1


def has_steps(text: str) -> bool:
    """Return whether the text has two or more steps, numbered from 1 without gaps."""
    numbers = [int(named or bare) for named, bare in STEP.findall(text)]
    return len(numbers) >= MIN_STEPS and numbers == list(range(1, len(numbers) + 1))


FORMS: Final[Mapping[str, tuple[str, Callable[[str], bool]]]] = {
    "qa": ("not_pairs", has_question_answer_pairs),
    "faq": ("not_pairs", has_question_answer_pairs),
    "math": ("no_solution", has_solved_problem),
    "table": ("no_table", has_table),
    "tutorial": ("no_steps", has_steps),
}
"""Style -> (reason to reject it, whether a text has its form). Other styles are prose."""
