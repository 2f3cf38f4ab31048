"""Render Markdown as HTML for pages."""

from __future__ import annotations

from functools import cache

from django.utils.safestring import SafeString
from markdown_it import MarkdownIt


def render_markdown(text: str) -> SafeString:
    """Return `text` as HTML, with raw HTML escaped and without images."""
    return SafeString(get_parser().render(text))  # nosec


@cache
def get_parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "html_block", "html_inline"])
