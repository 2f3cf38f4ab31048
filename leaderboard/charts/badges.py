"""Badges for a README: a track's record, an entry's multiplier."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from typing_extensions import TypedDict

from leaderboard.board.frontier import height, records
from leaderboard.models import Entry
from leaderboard.rankings.standings import Row, Standings

LONGEST = 40
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


def of_track(standings: Standings) -> Badge:
    """Return who holds the record, and by how much."""
    found = records(standings)
    if not found:
        return Badge(f"{settings.SITE_NAME} record", "none yet")
    row = found[-1].row
    return Badge(f"{settings.SITE_NAME} record", f"{row.latest.title[:LONGEST]}, {height(row):.3f}×")


def of_entry(entry: Entry, standings: Standings) -> Badge:
    """Return the entry's multiplier with its interval; before there is one, where it is."""
    row = standings.row(entry.pk)
    return Badge("compute multiplier", worth(row) if row else entry.get_state_display().lower())


def worth(row: Row) -> str:
    if row.is_baseline:
        return "1 (baseline)"
    if row.estimate is None or not row.estimate.cm:
        return f"{row.bits_per_byte:.4f} bits per byte"
    low, high = row.estimate.low, row.estimate.high
    return f"{row.estimate.cm:.3f}" + (f" ({low:.3f} to {high:.3f})" if low and high else "")
