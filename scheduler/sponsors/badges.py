"""SVG badges, drawn without an external service."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString

NARROW, WIDE = "fijltrI1.,:;|'() ", "mwMW@%"
HEIGHT = 20


def estimate_text_width(text: str) -> float:
    """Return the approximate width of a text in 11 px sans-serif. The SVG fits its text to this width."""
    return sum(3.6 if letter in NARROW else 9.8 if letter in WIDE else 6.6 for letter in text)


def draw_badge(label: str, message: str) -> SafeString:
    """Return an SVG: the label on gray, the message on blue. The CSP allows presentation attributes only."""
    left, right = estimate_text_width(label) + 14, estimate_text_width(message) + 14
    return format_html(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{height}" role="img" '
        'aria-label="{label}: {message}"><title>{label}: {message}</title>'
        '<clipPath id="c"><rect width="{whole}" height="{height}" rx="3"/></clipPath><g clip-path="url(#c)">'
        '<rect width="{left}" height="{height}" fill="#3b444c"/>'
        '<rect x="{left}" width="{right}" height="{height}" fill="#0b5cad"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        '<text x="7" y="14" textLength="{label_width}" lengthAdjust="spacingAndGlyphs">{label}</text>'
        '<text x="{message_x}" y="14" textLength="{message_width}" lengthAdjust="spacingAndGlyphs">{message}'
        "</text></g></svg>",
        whole=f"{left + right:.0f}", height=HEIGHT, left=f"{left:.1f}", right=f"{right:.1f}",
        label=label, label_width=f"{left - 14:.1f}",
        message=message, message_x=f"{left + 7:.1f}", message_width=f"{right - 14:.1f}",
    )  # fmt: skip
