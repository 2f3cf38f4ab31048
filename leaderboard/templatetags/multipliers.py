"""What templates need to tell of standings, multipliers and badges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template
from django.template import Context
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from leaderboard import formatting
from leaderboard.models import Run
from leaderboard.rankings import explanations
from leaderboard.rankings.standings import Row

if TYPE_CHECKING:
    from leaderboard.board.table import Line

register = template.Library()

register.filter("multiplier", explanations.multiplier)
register.filter("interval", explanations.interval)
register.filter("ends", explanations.ends)
register.filter("part_played", explanations.part_played)
register.filter("share", formatting.share)
register.filter("points", formatting.points)
register.simple_tag(explanations.brief, name="brief")
register.simple_tag(explanations.note, name="note")
register.simple_tag(explanations.standing, name="standing")
register.simple_tag(explanations.gain, name="gain")
register.simple_tag(explanations.next_step, name="next_step")
register.simple_tag(explanations.ladder_state, name="ladder_state")


@register.filter
def trust_means(trust: str) -> str:
    return explanations.TRUST[Run.Trust(trust)]


@register.simple_tag
def badge(trust: str) -> SafeString:
    """Write a trust badge that says what it means: to a mouse by itself, to everybody behind its link."""
    rank = Run.Trust(trust)
    return format_html(
        '<a class="trust is-{}" href="#badges" title="{}">{}</a>',
        rank.value,
        explanations.TRUST[rank],
        rank.label.lower(),
    )


@register.inclusion_tag("leaderboard/parts/badges.html")
def badges() -> dict[str, Any]:
    """Explain every badge: where the badges' links lead."""
    return {"meanings": explanations.TRUST.items()}


@register.simple_tag(takes_context=True)
def board_line(context: Context, line: Line) -> SafeString:
    """Draw a row of the board. It says the same until a run changes, so with the usual columns it is drawn once."""
    table, standings = context["table"], context["standings"]

    def drawn() -> SafeString:
        place = {"line": line, "row": line.row, "table": table, "standings": standings}
        return mark_safe(render_to_string("leaderboard/parts/board_line.html", place))  # noqa: S308 (a template's)

    return drawn() if table.is_chosen else standings.once(("line", line.row.entry, line.is_tied), drawn)


@register.simple_tag(takes_context=True)
def drawn_once(context: Context, part: str) -> SafeString:
    """Include a part that tells of the standings and of nothing else."""

    def drawn() -> SafeString:
        names: dict[str, Any] = {str(name): value for name, value in context.flatten().items()}
        return mark_safe(render_to_string(part, names))  # noqa: S308 (a template's)

    return context["standings"].once(part, drawn)  # type: ignore[no-any-return]


@register.filter
def rank_of(row: Row) -> int | None:
    return row.estimate.rank if row.estimate else None


@register.filter
def is_extrapolated(row: Row) -> bool:
    return bool(row.estimate and row.estimate.extrapolated and row.estimate.cm is not None)


@register.filter
def verdict_class(row: Row) -> str:
    """Return better, worse or level: how a row is drawn."""
    estimate = row.estimate
    if estimate is None or estimate.low is None or estimate.high is None:
        return "level"
    return "better" if estimate.low > 1 else "worse" if estimate.high < 1 else "level"
