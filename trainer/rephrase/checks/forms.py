"""Checks that a text has the form that its style asks for: pairs, a problem with its solution, a table, steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

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
