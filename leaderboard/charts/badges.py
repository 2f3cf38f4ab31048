"""Badges for a README: a track's record, an entry's multiplier."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from typing_extensions import TypedDict

from leaderboard.charts.frontier import get_multiplier, load_records
from leaderboard.models import Entry, Standing, StandingsTable

MAX_TITLE_LENGTH = 40
"""Letters of a title on a badge."""


class ShieldsDict(TypedDict):
    """What https://shields.io/badges/endpoint-badge reads."""

    schemaVersion: int
    label: str
    message: str
    color: str
    cacheSeconds: int


@dataclass(frozen=True)
class Badge:
    label: str
    message: str

    def to_dict(self) -> ShieldsDict:
        return {
            "schemaVersion": 1,
            "label": self.label,
            "message": self.message,
            "color": "0b5cad",
            "cacheSeconds": 300,
        }


def build_track_badge(table: StandingsTable) -> Badge:
    """Return the badge of the record: its holder and its multiplier."""
    label, records = f"{settings.SITE_NAME} record", load_records(table)
    if not records:
        return Badge(label, "none yet")
    row = records[-1].row
    return Badge(label, f"{row.entry.title[:MAX_TITLE_LENGTH]}, {get_multiplier(row):.3f}×")


def build_entry_badge(entry: Entry, table: StandingsTable) -> Badge:
    """Return the badge of an entry's multiplier with its interval; before there is one, its state."""
    row = table.get_row(entry.pk)
    return Badge("compute multiplier", format_value(row) if row else entry.get_state_display().lower())


def format_value(row: Standing) -> str:
    """1.031 (1.009 to 1.054)"""
    if row.is_baseline:
        return "1 (baseline)"
    if not row.multiplier:
        return f"{row.bits_per_byte:.4f} bits per byte"
    low, high = row.multiplier_low, row.multiplier_high
    return f"{row.multiplier:.3f}" + (f" ({low:.3f} to {high:.3f})" if low and high else "")
