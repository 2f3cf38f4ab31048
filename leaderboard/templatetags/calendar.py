"""What templates need to tell of the calendar."""

from __future__ import annotations

from datetime import datetime

from django import template

from leaderboard.models import Night, Run
from leaderboard.schedule.calendar import NextNightly
from leaderboard.templatetags.runs import status

register = template.Library()

DUE = {"stays": "delayed", "waits": "no platform", "baseline": "main is broken", "leaves": "on time"}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@register.filter
def due_status(line: NextNightly) -> str:
    return DUE[line.state]


@register.filter
def night_state(night: Night) -> str:
    """Return the state of a night's run; `cancelled` where there was none."""
    return night.run.state if night.run else Run.State.CANCELLED


@register.filter
def night_word(night: Night) -> str:
    """Return what came of a night in a word: its result, or how far it is."""
    if night.run is None:
        return "cancelled"
    if night.run.state == Run.State.FINISHED:
        return f"{night.run.bits_per_byte:.4f}"
    return status(night.run)


@register.filter
def weekday(number: int) -> str:
    return DAYS[number]


@register.filter
def seconds_since(end: datetime, begin: datetime) -> float:
    return (end - begin).total_seconds()
