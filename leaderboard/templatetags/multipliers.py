"""Template filters and tags for standings, multipliers and trust badges."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leaderboard import formatting
from leaderboard.board import columns
from leaderboard.models import Run, Standing
from leaderboard.rankings import explanations

register = template.Library()

register.filter("multiplier", explanations.format_multiplier)
register.filter("interval", explanations.format_interval)
register.filter("ends", explanations.format_interval_ends)
register.filter("part_played", explanations.describe_purpose)
register.filter("difference", columns.format_difference)
register.filter("summary", explanations.summarize_run)
register.filter("share", formatting.share)
register.filter("points", formatting.points)
register.simple_tag(explanations.describe_verdict_briefly, name="brief")
register.simple_tag(explanations.describe_verdict, name="note")
register.simple_tag(explanations.describe_standing, name="standing")
register.simple_tag(explanations.describe_gain, name="gain")
register.simple_tag(explanations.suggest_next_step, name="next_step")
register.simple_tag(explanations.describe_ladder, name="ladder_state")


@register.filter
def trust_means(trust: str) -> str:
    return explanations.TRUST_MEANINGS[Run.Trust(trust)]


@register.simple_tag
def badge(trust: str) -> SafeString:
    """Return a trust badge that links to its explanation (`badges`)."""
    rank = Run.Trust(trust)
    return format_html('<a class="trust is-{}" href="#badges">{}</a>', rank.value, rank.label.lower())


@register.inclusion_tag("leaderboard/parts/badges.html")
def badges() -> dict[str, Any]:
    return {"meanings": explanations.TRUST_MEANINGS.items()}


@register.filter
def verdict_class(row: Standing) -> str:
    low, high = row.multiplier_low, row.multiplier_high
    if low is None or high is None:
        return "level"
    return "better" if low > 1 else "worse" if high < 1 else "level"
