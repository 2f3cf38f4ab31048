"""Filters for Markdown templates: they escape untrusted text."""

from __future__ import annotations

from django.template import Library

from scheduler.markdown import break_references, escape_markdown

register = Library()
register.filter(escape_markdown)


@register.filter
def escape_except_code(text: str) -> str:
    """Escape text except its code spans, for messages that name fields as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape_markdown(text)
    return "".join(format_code(part) if number % 2 else escape_with_spaces(part) for number, part in enumerate(parts))


@register.filter
def escape_code(line: str) -> str:
    """Return a line that can stand between backticks."""
    return break_references(line.replace("`", ""))


def format_code(text: str) -> str:
    """Return untrusted text as a code span on one line."""
    line = escape_code(" ".join(text.split()))
    return f"`{line}`" if line else ""


def escape_with_spaces(text: str) -> str:
    """Escape text and keep a space at its ends."""
    lead = " " if text[:1] == " " else ""
    return f"{lead}{escape_markdown(text)}{' ' if text[-1:] == ' ' and text.strip() else ''}"
