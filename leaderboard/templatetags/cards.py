"""What a page says to whoever shows a preview of its link."""

from __future__ import annotations

from django import template
from django.conf import settings
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag
def card(view: str, of: int | str, title: str, about: str = "") -> SafeString:
    """Write the OpenGraph tags of a page: `view` draws its picture, `of` says which."""
    return format_html(
        '<meta property="og:type" content="article"><meta property="og:site_name" content="{site}">'
        '<meta property="og:title" content="{title}"><meta property="og:description" content="{about}">'
        '<meta property="og:image" content="{picture}"><meta property="og:image:type" content="image/png">'
        '<meta property="og:image:width" content="1200"><meta property="og:image:height" content="630">'
        '<meta property="og:image:alt" content="{title}: its curve and its numbers">'
        '<meta name="twitter:card" content="summary_large_image">',
        site=settings.SITE_NAME, title=title, about=about[:200], picture=settings.SITE_URL + reverse(view, args=[of]),
    )  # fmt: skip


@register.simple_tag
def feed(view: str, title: str, *of: int | str) -> SafeString:
    """Write the link by which a reader finds a page's feed."""
    return format_html(
        '<link rel="alternate" type="application/atom+xml" title="{}" href="{}">', title, reverse(view, args=of)
    )
