"""Escapes untrusted text for Markdown: comments on GitHub and cards of the Hugging Face Hub."""

from __future__ import annotations

import re

WORD_JOINER = "\u2060"  # invisible
MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~&$])")


def escape_markdown(text: str) -> str:
    """Return text on one line that Markdown and HTML show unchanged, without mentions and references."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return break_references(MARKDOWN_SPECIAL.sub(r"\\\1", line)).strip()


def break_references(text: str) -> str:
    """Return text whose `@name` and `#12` refer to nothing on GitHub."""
    return re.sub(r"([@#])(?=\w)", rf"\1{WORD_JOINER}", text)


def sanitize_code(value: str) -> str:
    """Return the text safe for use between backticks or in a shell command."""
    return "".join(letter for letter in value if letter.isalnum() or letter in "-._/:@+~")
