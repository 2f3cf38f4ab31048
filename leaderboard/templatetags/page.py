"""Template filters and tags for numbers, times and the frame of a page."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django import template
from django.conf import settings
from django.db.models import Q
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leaderboard import demo_label, formatting
from leaderboard.charts.curve_svg import path
from leaderboard.models.entries import web_address
from scheduler.models import Node

register = template.Library()
register.filter("budget", formatting.budget)
register.filter(formatting.decimals)
register.filter(path)
NEAR_SECONDS = 20 * 3600


for write in (formatting.compact, formatting.power, formatting.binary, formatting.duration):
    register.filter(write.__name__, partial(formatting.format_or_missing, write))


@register.filter
def ordinal(number: int) -> str:
    """1 is 1st, 12 is 12th, 23 is 23rd."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


@register.filter
def percent(fraction: float) -> str:
    """Round down: a run at 99.9 % has not arrived."""
    return f"{int(min(max(fraction, 0), 1) * 100)}{formatting.SPACE}%"


@register.filter
def hardware(node: Node) -> str:
    facts = node.hardware
    memory = facts.get("memory_bytes")
    parts = [
        *(
            f"{count}{formatting.SPACE}× {gpu}" if count > 1 else gpu
            for gpu, count in Counter(facts.get("gpus", [])).items()
        ),
        f"{facts['cpus']} cores" if facts.get("cpus") else "",
        formatting.binary(memory) if memory else "",
    ]
    return ", ".join(part for part in parts if part)


@register.filter
def plain(name: str) -> str:
    """`bits_per_byte` is bits per byte."""
    return name.replace("_", " ")


@register.simple_tag
def moment(at: datetime | None, show: str = "moment") -> SafeString | str:
    """Write a time in UTC with 24 hours. `show`: "moment", "clock" or "day"."""
    if at is None:
        return formatting.MISSING
    at = at.astimezone(UTC)
    day = f"{at:%-d %b}" if at.year == datetime.now(UTC).year else f"{at:%-d %b %Y}"
    text = {"moment": f"{day}, {at:%H:%M} UTC", "clock": f"{at:%H:%M} UTC", "day": day}[show]
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        at.isoformat(timespec="seconds"), f"{at:%Y-%m-%d %H:%M:%S} UTC", text,
    )  # fmt: skip


@register.filter
def how_near(at: datetime | None) -> str:
    """Return which format of `moment` is unambiguous: "clock" within 20 hours, else "moment"."""
    return "clock" if at is None or abs((datetime.now(UTC) - at).total_seconds()) < NEAR_SECONDS else "moment"


@register.inclusion_tag("leaderboard/parts/foot.html")
def foot() -> dict[str, Any]:
    """Links and acknowledgements at the foot of every page."""
    parted = (line.rpartition(" ") for line in settings.ACKNOWLEDGEMENTS)
    thanked = [
        (name, address) if address.startswith(("https://", "http://")) and name else (f"{name} {address}".strip(), "")
        for name, _, address in parted
    ]
    source = settings.MAIN_REPOSITORY if web_address(settings.MAIN_REPOSITORY) else ""
    return {"chat_url": settings.CHAT_URL, "thanked": thanked, "source": source}


@register.inclusion_tag("leaderboard/parts/banner.html")
def unboxed_nodes() -> dict[str, Any]:
    """Warn of nodes that run jobs without a sandbox, and label the demo. One query."""
    states = [Node.State.NEW, Node.State.TESTING, Node.State.ONLINE, Node.State.DRAINING]
    present = Node.objects.filter(Q(state__in=states) | Q(name=demo_label.NODE))
    nodes = list(present.values_list("name", "hardware"))
    return {
        "nodes": [name for name, hardware in nodes if (hardware.get("sandboxes") or [""])[0] == "none"],
        "demo": demo_label.WORDS if any(name == demo_label.NODE for name, _ in nodes) else "",
    }


@register.simple_tag
def card(view: str, of: int | str, title: str, about: str = "") -> SafeString:
    """Write the OpenGraph tags of a page; `view` draws its image of the object `of`."""
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
    """Write the link by which feed readers find a page's feed."""
    return format_html(
        '<link rel="alternate" type="application/atom+xml" title="{}" href="{}">', title, reverse(view, args=of)
    )
