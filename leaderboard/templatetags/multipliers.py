"""What templates need to tell of standings, multipliers and badges."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leaderboard import figures
from leaderboard.judging import sentences
from leaderboard.judging.standings import Row
from leaderboard.models import Run

register = template.Library()

register.filter("multiplier", sentences.multiplier)
register.filter("interval", sentences.interval)
register.filter("ends", sentences.ends)
register.filter("part_played", sentences.part_played)
register.filter("share", figures.share)
register.filter("points", figures.points)
register.simple_tag(sentences.brief, name="brief")
register.simple_tag(sentences.note, name="note")
register.simple_tag(sentences.standing, name="standing")
register.simple_tag(sentences.gain, name="gain")
register.simple_tag(sentences.next_step, name="next_step")
register.simple_tag(sentences.ladder_state, name="ladder_state")


@register.filter
def trust_means(trust: str) -> str:
    return sentences.TRUST[Run.Trust(trust)]


@register.simple_tag
def badge(trust: str) -> SafeString:
    """Write a trust badge that says what it means: to a mouse by itself, to everybody behind its link."""
    rank = Run.Trust(trust)
    return format_html(
        '<a class="trust is-{}" href="#badges" title="{}">{}</a>', rank.value, sentences.TRUST[rank], rank.label.lower()
    )


@register.inclusion_tag("leaderboard/parts/badges.html")
def badges() -> dict[str, Any]:
    """Explain every badge: where the badges' links lead."""
    return {"meanings": sentences.TRUST.items()}


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
