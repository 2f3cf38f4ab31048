"""Prompts, one for each style: the four styles of arXiv 2401.16380 in our own words.

Results carry the version of their prompt, so a prompt never changes: an improved one gets a new number in `VERSIONS`.
A prompt is a single user message, since some chat templates (Mistral's) have no system role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CURRENT_VERSION: Final = 1

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
VERSIONS: Final[Mapping[int, Mapping[str, tuple[str, ...]]]] = {1: VERSION_1}

STYLES: Final = tuple(VERSION_1)


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
