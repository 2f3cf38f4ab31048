"""Removes introductions that models write before the text, such as "Sure! Here's a paraphrase of the text:".

Only at the start, only up to a colon or an empty line, at most a short sentence, and not if the source itself begins
that way.
"""

from __future__ import annotations

import re

MAX_INTRODUCTION_CHARS = 200  # of a removed introduction

YES = r"(?:sure|certainly|of course|absolutely|okay|ok|gladly|no problem)(?: thing)?"
MADE = (
    r"(?:(?:para|re)phras\w*|rewrit\w*|rewrote|reword\w*|restat\w*|simplif\w*|summar\w*|version|rendition|rendering"
    r"|conver\w*|translat\w*|(?:the|a|an|new|your) (?:new )?(?:text|passage|dialogue)|question\w*(?: and|-)answer\w*)"
)
HERE = r"(?:here(?:'s|’s| is| are)|this is|below is|below are|the following is|the following are|i(?:'ve|’ve| have)?)"
LABEL = (
    r"(?:the )?(?:para|re)phrased?(?: (?:text|version|passage|paragraph|article))?"
    r"|(?:the )?(?:rewritten|reworded|restated|simplified|new|easy|medium|hard|terse|erudite|scholarly)"
    r" (?:text|version|passage|paragraph|article)|paraphrase|rephrasing|conversation"
)
FORMS = (
    # The end is looked for before `MADE`: once for each `MADE` would take quadratic time.
    rf"(?:{YES}[\s,.!]+)?{HERE}\b(?=[^\n:]*:)[^\n:]*?\b{MADE}\b[^\n:]*:",
    rf"(?:{YES}[\s,.!]+)?{HERE}\b(?=[^\n]*\n\s*\n)[^\n:]*?\b{MADE}\b[^\n]*",
    rf"(?:{LABEL})\s*:",
    rf"{YES}[.!](?=\s*\n)",
)
INTRODUCTION = re.compile(rf"[*_#>\s]*(?:{'|'.join(FORMS)})[*_\s]*", re.IGNORECASE)
QUOTED = re.compile(r'"([^"]*)"|“([^“”]*)”')


def clean_output(output: str, source: str = "") -> str:
    """Return the output without introduction, surrounding space and quotation marks around the whole text."""
    text = output.replace("\r\n", "\n").strip()
    introduction = INTRODUCTION.match(text)
    if introduction and introduction.end() <= MAX_INTRODUCTION_CHARS and not INTRODUCTION.match(source):
        text = text[introduction.end() :].strip()
    quoted = QUOTED.fullmatch(text)
    if quoted and not source.strip().startswith(('"', "“")):
        return (quoted[1] or quoted[2] or "").strip()
    return text
