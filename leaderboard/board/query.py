"""What a visitor asks of the board: order, search, filters, columns, page. All of it is in the address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict

from leaderboard.board.columns import COLUMNS, Column
from leaderboard.models import Run
from leaderboard.rankings.standings import Row
from trainer.scoring.multiplier import AXES, Axis

PER_PAGE = 50
MOST_WORDS = 100
"""Characters of a search that are looked at."""
RANK = "rank"
SORTS = (RANK, "multiplier", "entry", *COLUMNS)
USUAL = tuple(name for name, column in COLUMNS.items() if column.usual)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One address of the board, read. What makes no sense in it is passed over."""

    axis: Axis = AXES[0]
    sort: str = RANK
    backwards: bool = False
    """The other way round than a column's best first."""
    words: str = ""
    trust: str = ""
    architecture: str = ""
    columns: tuple[str, ...] = USUAL
    page: int = 1

    @property
    def is_ranked(self) -> bool:
        return self.sort == RANK and not self.backwards

    @property
    def is_narrowed(self) -> bool:
        return bool(self.words or self.trust or self.architecture)

    @property
    def shown(self) -> list[tuple[str, Column]]:
        return [(name, column) for name, column in COLUMNS.items() if name in self.columns]

    def address(self, **changes: Any) -> str:
        """Return the query string of this view of the board, changed; only what differs from the usual is written."""
        to = replace(self, **changes)
        given = {
            "axis": to.axis if to.axis != AXES[0] else "",
            "q": to.words,
            "trust": to.trust,
            "architecture": to.architecture,
            "sort": ("-" if to.backwards else "") + to.sort if not to.is_ranked else "",
            "columns": ",".join(to.columns) if to.columns != USUAL else "",
            "page": str(to.page) if to.page > 1 else "",
        }
        return "?" + urlencode({name: value for name, value in given.items() if value}, safe=",")


def read(query: QueryDict) -> Asked:
    sort = query.get("sort", RANK)
    name = sort.removeprefix("-")
    page = query.get("page", "1")
    chosen = {name for value in query.getlist("columns") for name in value.split(",")}
    return Asked(
        axis=next((axis for axis in AXES if axis == query.get("axis")), AXES[0]),
        sort=name if name in SORTS else RANK,
        backwards=sort.startswith("-") and name in SORTS,
        words=query.get("q", "").strip()[:MOST_WORDS].replace("\0", ""),
        trust=next((trust for trust in Run.Trust.values if trust == query.get("trust")), ""),
        architecture=query.get("architecture", "")[:MOST_WORDS],
        columns=tuple(name for name in COLUMNS if name in chosen) or USUAL,
        page=min(max(int(page), 1), 10_000) if page.isascii() and page.isdigit() and len(page) < 6 else 1,
    )


def narrowed(rows: Sequence[Row], asked: Asked) -> list[Row]:
    """Return the rows that were asked for, by rank."""
    if not asked.is_narrowed:
        return list(rows)
    words = asked.words.casefold().split()
    return [
        row
        for row in rows
        if (not asked.trust or row.trust == asked.trust)
        and (not asked.architecture or row.latest.architecture == asked.architecture)
        and all(word in text for text in [haystack(row)] for word in words)
    ]


def haystack(row: Row) -> str:
    latest = row.latest
    return " ".join((latest.title, latest.author, latest.architecture, latest.sha)).casefold()


def ordered(rows: Sequence[Row], asked: Asked) -> list[Row]:
    """Return rows, given by rank, in the order that was asked for; ties stay by rank."""
    if asked.sort == RANK:
        return list(reversed(rows)) if asked.backwards else list(rows)
    high = (
        asked.sort == "multiplier" or (asked.sort in COLUMNS and COLUMNS[asked.sort].best_is_high)
    ) != asked.backwards
    keyed = [(key(row, asked.sort), row) for row in rows]
    known = [(value, row) for value, row in keyed if value is not None]
    ranked = sorted(known, key=lambda pair: pair[0], reverse=high)
    return [row for _, row in ranked] + [row for value, row in keyed if value is None]


def key(row: Row, sort: str) -> float | str | None:
    if sort == "multiplier":
        return row.estimate.cm if row.estimate else None
    if sort == "entry":
        return row.latest.title.casefold()
    return COLUMNS[sort].key(row)
