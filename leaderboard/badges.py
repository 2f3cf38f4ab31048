"""Texts of README badges: label and message."""

from __future__ import annotations

from django.conf import settings

from leaderboard.charts.frontier import get_multiplier, load_records
from leaderboard.models import Entry, Standing, StandingsTable

TITLE_LENGTH = 40


def build_track_badge(table: StandingsTable) -> tuple[str, str]:
    label, records = f"{settings.SITE_NAME} record", load_records(table)
    if not records:
        return label, "none yet"
    row = records[-1].row
    return label, f"{row.entry.title[:TITLE_LENGTH]}, {get_multiplier(row):.3f}×"


def build_entry_badge(entry: Entry, table: StandingsTable) -> tuple[str, str]:
    """Return the badge of an entry's multiplier with its interval; before there is one, its state."""
    row = table.get_row(entry.pk)
    return "compute multiplier", format_value(row) if row else entry.get_state_display().lower()


def format_value(row: Standing) -> str:
    """1.031 (1.009 to 1.054)"""
    if row.is_baseline:
        return "1 (baseline)"
    if not row.multiplier:
        return f"{row.bits_per_byte:.4f} bits per byte"
    low, high = row.multiplier_low, row.multiplier_high
    return f"{row.multiplier:.3f}" + (f" ({low:.3f} to {high:.3f})" if low and high else "")
