"""Prompts, one for each style, in our own words.

easy, medium, hard, qa: the styles of WRAP (Maini et al., arXiv 2401.16380). faq, math, table, tutorial: the formats of
FinePhrase (Hugging Face, 2026).

Results carry the version of their prompt, so a prompt never changes: an improved one gets a new number in `VERSIONS`.
A prompt is a single user message, since some chat templates (Mistral's) have no system role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CURRENT_VERSION: Final = 2

TEXT_ONLY = "Give me the new text and nothing else: no introduction, no remark about it, no title."

VERSION_1 = {
    "easy": (
        "Tell what the text below says so that a very young child can follow it.",
        "Use the smallest and most common words there are, and sentences of a few words each.",
        "Keep every fact, in the same order, and add none of your own.",
        TEXT_ONLY,
    ),
    "medium": (
        "Write the text below anew in clear, correct English, as a good encyclopedia article is written.",
        "Use your own wording and sentence structure throughout; do not take over whole phrases.",
        "Keep every fact, name and number, and add none of your own.",
        TEXT_ONLY,
    ),
    "hard": (
        "Restate the text below for scholars: tersely, in learned prose with rare and exact words.",
        "Condense what is said at length, but drop no fact, name or number, and add none of your own.",
        TEXT_ONLY,
    ),
    "qa": (
        "Turn the text below into a conversation in which one person asks and another one answers.",
        "Each question stands on a line that begins with 'Question:', its answer on the next one after 'Answer:'.",
        "Ask at least two questions, and as many as it takes to cover every fact of the text.",
        "The answers are full sentences and hold nothing that is not in the text.",
        "Give me the conversation and nothing else: no introduction, no remark about it, no title.",
    ),
}
VERSION_2 = {
    **VERSION_1,
    "faq": (
        "Turn the text below into a page of frequently asked questions, each with its answer.",
        "Ask what a reader who knows nothing of the subject would ask, and order the questions from basic to detailed.",
        "Each question stands on a line that begins with 'Question:', its answer on the next one after 'Answer:'.",
        "Each answer can be understood without the others, and holds nothing that is not in the text.",
        "Give me the questions and answers and nothing else: no introduction, no remark about them, no title.",
    ),
    "math": (
        "Write a word problem in mathematics that uses the subject and the numbers of the text below, then solve it.",
        "The problem stands on a line that begins with 'Problem:' and states every number that its solution needs.",
        "The solution begins on a new line with 'Solution:' and derives the result in small steps, in full sentences.",
        "The last sentence of the solution states the result.",
        "Give me the problem and its solution and nothing else: no introduction, no remark about them, no title.",
    ),
    "table": (
        "Arrange the facts of the text below in one table in Markdown.",
        "The table has a header row, a row of dashes below it, and at least two rows of facts.",
        "Keep every name and number, and add none of your own.",
        "After the table, write a few full sentences that say what it shows.",
        "Give me the table and these sentences and nothing else: no introduction, no remark about them, no title.",
    ),
    "tutorial": (
        "Turn the text below into a tutorial that teaches a reader what it says, step by step.",
        "Each step begins on a new line with its number and a period, and there are at least two of them.",
        "Write in the second person and in full sentences; explain each term where it first appears.",
        "Keep every fact, name and number, and add none of your own.",
        "Give me the tutorial and nothing else: no introduction, no remark about it, no title.",
    ),
}
VERSIONS: Final[Mapping[int, Mapping[str, tuple[str, ...]]]] = {1: VERSION_1, 2: VERSION_2}

STYLES: Final = tuple(VERSION_2)
"""The styles of the current version."""


@dataclass(frozen=True)
class Credit:
    """The inventors of some styles."""

    title: str
    authors: str
    url: str
    styles: tuple[str, ...]


CREDITS: Final = (
    Credit("WRAP", "Maini et al., 2024", "https://arxiv.org/abs/2401.16380", ("easy", "medium", "hard", "qa")),
    Credit(
        "FinePhrase",
        "Niklaus et al., 2026",
        "https://huggingface.co/datasets/HuggingFaceFW/finephrase",
        ("faq", "math", "table", "tutorial"),
    ),
)


def get_instructions(style: str, version: int = CURRENT_VERSION) -> tuple[str, ...]:
    """Return the sentences of a prompt. Raise ValueError for an unknown version or style."""
    if version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise ValueError(
            f"There is no version {version} of the prompts here (there is {known}): dailytrain is too old."
        )
    if style not in VERSIONS[version]:
        raise ValueError(f"There is no style {style!r}; there are {', '.join(VERSIONS[version])}.")
    return VERSIONS[version][style]


def build_prompt(style: str, text: str, version: int = CURRENT_VERSION) -> str:
    """Return the prompt for a text. Raises as `get_instructions`."""
    return "\n".join([*get_instructions(style, version), "", "The text:", "", text.strip()])
