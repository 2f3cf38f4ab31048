"""What templates need to write numbers and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import Any

from django import template
from django.conf import settings
from django.db.models import Q
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from leaderboard import demo_label, formatting
from leaderboard.charts.curve_svg import Dot, Tick, path
from leaderboard.charts.panels import Line
from leaderboard.comparison import Cell
from leaderboard.models import Score
from leaderboard.models.entries import web_address
from scheduler.models import Node

register = template.Library()
NEAR_SECONDS = 20 * 3600
CROWD = 60
RAW = '<path class="raw" d="{}" vector-effect="non-scaling-stroke"/>'
SMOOTH = '<path class="smooth is-{}" d="{}" vector-effect="non-scaling-stroke"/>'
HERE = '<circle class="last" cx="{}%" cy="{}%" r="5"/>'


def written(write: Any, value: float | None) -> str:
    return formatting.MISSING if value is None else write(value)


@register.filter
def compact(value: float | None) -> str:
    return written(formatting.compact, value)


@register.filter
def power(value: float | None) -> str:
    return written(formatting.power, value)


@register.filter
def binary(value: float | None) -> str:
    return written(formatting.binary, value)


@register.filter
def duration(value: float | None) -> str:
    return written(formatting.duration, value)


@register.filter
def budget(text: str) -> str:
    return formatting.budget(text)


@register.filter
def decimals(value: float | None, digits: int) -> str:
    return written(lambda number: f"{number:.{digits}f}", value)


# What a page has hundreds of is put together here: a template takes ten times as long for each.


def repeated(pattern: str, rows: Iterable[Iterable[object]]) -> SafeString:
    """Return the pattern once for each row, filled with its values as text. `format_html_join` looks at each value for
    what is already HTML, which takes five times as long."""
    return mark_safe("".join([pattern.format(*[escape(str(value)) for value in row]) for row in rows]))  # noqa: S308


@register.filter
def cells(values: Iterable[str]) -> SafeString:
    """Return a row's numbers as cells of a table."""
    return repeated('<td class="number">{}</td>', ((value,) for value in values))


@register.filter
def rows(table: Iterable[Iterable[str]]) -> SafeString:
    """Return rows of numbers."""
    return mark_safe("".join([f"<tr>{cells(row)}</tr>" for row in table]))  # noqa: S308 (of cells)


@register.filter
def heads(names: Iterable[str]) -> SafeString:
    """Return what stands above them."""
    return repeated('<th scope="col" class="number">{}</th>', ((name,) for name in names))


@register.filter
def text_cells(values: Iterable[str]) -> SafeString:
    """Return the texts of a row as table cells."""
    return repeated("<td>{}</td>", ((value or formatting.MISSING,) for value in values))


@register.filter
def scored(scores: Iterable[Score | None]) -> SafeString:
    """Return scores with their standard errors as cells of a table."""
    return mark_safe("".join([one_score(score) for score in scores]))  # noqa: S308 (numbers only)


def one_score(score: Score | None) -> str:
    if score is None:
        return f'<td class="number">{formatting.MISSING}</td>'
    aside = "" if score.stderr is None else f' <span class="quiet">± {score.stderr:.4f}</span>'
    return f'<td class="number">{score.value:.4f}{aside}</td>'


@register.filter
def against(entries: Iterable[Cell | None]) -> SafeString:
    """Return how an entry does against others as cells of a table; nothing on the diagonal."""
    return mark_safe("".join([one_pair(cell) for cell in entries]))  # noqa: S308 (numbers and our own words only)


def one_pair(cell: Cell | None) -> str:
    if cell is None:
        return '<td class="quiet">·</td>'
    said = f"{cell.interval}, {cell.verdict}" if cell.interval else "not resolvable"
    return f'<td class="is-{cell.verdict}"><strong>{cell.number}</strong> <span class="quiet">{said}</span></td>'


@register.filter
def upwards(ticks: Iterable[Tick]) -> SafeString:
    """Return the lines of a picture's grid, with what is written beside them."""
    line = '<line x1="0" x2="100%" y1="{0}%" y2="{0}%"/><text x="-8" y="{0}%" dy="0.32em" text-anchor="end">{1}</text>'
    return repeated(line, ((tick.at, tick.label) for tick in ticks))


@register.filter
def across(ticks: Iterable[Tick]) -> SafeString:
    """Return what is written under a picture."""
    text = '<text class="x" x="{}%" y="100%" dy="20" text-anchor="middle">{}</text>'
    return repeated(text, ((tick.at, tick.label) for tick in ticks))


@register.filter
def dots(places: Iterable[Dot]) -> SafeString:
    """Return the evaluations of a curve; many of them are drawn small."""
    found = list(places)
    size = "3.500" if len(found) <= CROWD else "1.750"
    return repeated('<circle class="dev" cx="{}%" cy="{}%" r="{}"/>', ((*place, size) for place in found))


@register.filter
def paths(lines: Iterable[Line]) -> SafeString:
    """Return the curves of a picture, the first on top."""
    drawn = [
        (RAW.format(line.raw) if line.raw else "") + SMOOTH.format(escape(str(line.colour)), line.smooth)
        for line in reversed(list(lines))
    ]
    return mark_safe("".join(drawn))  # noqa: S308 (numbers, and a colour's name)


register.filter(path)


@register.filter
def marks(lines: Iterable[Line]) -> SafeString:
    """Return what lies over the curves: evaluations, and where a train is now."""
    drawn = [dots(line.dots) + (HERE.format(*line.last) if line.last else "") for line in lines]
    return mark_safe("".join(drawn))  # noqa: S308 (numbers only)


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
    """Return what the machine is, in a line."""
    facts = node.hardware
    memory = facts.get("memory_bytes")
    parts = [
        *(
            f"{count}{formatting.SPACE}× {gpu}" if count > 1 else gpu
            for gpu, count in Counter(facts.get("gpus", [])).items()
        ),
        f"{facts['cpus']} cores" if facts.get("cpus") else "",
        binary(memory) if memory else "",
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
    """Return how to show a moment: by the clock where there is no doubt of which day it is, else by day and hour."""
    return "clock" if at is None or abs((datetime.now(UTC) - at).total_seconds()) < NEAR_SECONDS else "moment"


@register.inclusion_tag("leaderboard/parts/foot.html")
def foot() -> dict[str, Any]:
    """Where to go on from any page, and whom to thank."""
    parted = (line.rpartition(" ") for line in settings.ACKNOWLEDGEMENTS)
    thanked = [
        (name, address) if address.startswith(("https://", "http://")) and name else (f"{name} {address}".strip(), "")
        for name, _, address in parted
    ]
    source = settings.MAIN_REPOSITORY if web_address(settings.MAIN_REPOSITORY) else ""
    return {"chat_url": settings.CHAT_URL, "thanked": thanked, "source": source}


@register.inclusion_tag("leaderboard/parts/banner.html")
def unboxed_nodes() -> dict[str, Any]:
    """Warn of nodes that run jobs without a sandbox, and tell what is a demo. One query for both."""
    states = [Node.State.NEW, Node.State.ONLINE, Node.State.DRAINING]
    present = Node.objects.filter(Q(state__in=states) | Q(name=demo_label.NODE))
    nodes = list(present.values_list("name", "hardware"))
    return {
        "nodes": [name for name, hardware in nodes if (hardware.get("sandboxes") or [""])[0] == "none"],
        "demo": demo_label.WORDS if any(name == demo_label.NODE for name, _ in nodes) else "",
    }
