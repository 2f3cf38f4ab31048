"""The board's table: rows in order, cells, and links to sort and page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leaderboard.board.columns import COLUMNS, Cell, Column
from leaderboard.board.query import RANK, ROWS_PER_PAGE, BoardQuery, BoardRows, get_default_columns
from leaderboard.charts.curve_svg import Whisker
from leaderboard.charts.multiplier_charts import MultiplierScale, build_whisker, scale_from_range
from leaderboard.models import Run, Standing, StandingsTable


@dataclass(frozen=True)
class Head:
    name: str
    label: str
    explains: str
    address: str
    is_number: bool
    direction: str
    """For aria-sort; empty where the table is not sorted by it."""


@dataclass(frozen=True)
class Line:
    row: Standing
    is_tied: bool
    whisker: Whisker | None
    cells: list[tuple[str, Column, Cell]]


@dataclass(frozen=True)
class BoardTable:
    query: BoardQuery
    shown: list[str]
    """Names of the visible columns."""
    usual: list[str]
    """Names of the columns that are visible if none is chosen."""
    heads: dict[str, Head]
    pinned: Line | None
    """The baseline, if it is not among the lines."""
    lines: list[Line]
    scale: MultiplierScale | None
    match_count: int
    total: int
    architectures: list[str]
    trust_levels: list[Run.Trust]

    @property
    def columns(self) -> list[Head]:
        return [self.heads[name] for name in self.shown]

    @property
    def choices(self) -> list[tuple[str, str, bool]]:
        """Return the name and label of each column, and whether it is visible."""
        return [(name, column.label, name in self.shown) for name, column in COLUMNS.items()]

    @property
    def sorts(self) -> list[tuple[str, str, bool]]:
        """Return the sort menu of narrow screens."""
        labels = {RANK: "Rank", "multiplier": "Multiplier", "entry": "Entry"}
        labels |= {name: COLUMNS[name].label for name in self.shown}
        current = ("-" if self.query.is_reversed else "") + self.query.sort
        return [
            (current if name == self.query.sort else name, label, name == self.query.sort)
            for name, label in labels.items()
        ]

    @property
    def has_chosen_columns(self) -> bool:
        return self.shown != self.usual

    @property
    def default_columns(self) -> str:
        return ",".join(self.usual)

    @property
    def unfiltered_address(self) -> str:
        return self.query.address(words="", trust="", architecture="", page=1)

    @property
    def pages(self) -> int:
        return max(1, math.ceil(self.match_count / ROWS_PER_PAGE))

    @property
    def previous_address(self) -> str:
        return self.query.address(page=self.query.page - 1) if self.query.page > 1 else ""

    @property
    def next_address(self) -> str:
        return self.query.address(page=self.query.page + 1) if self.query.page < self.pages else ""


def build_board_table(table: StandingsTable, query: BoardQuery, rows: BoardRows) -> BoardTable:
    shown = query.get_columns(table)
    scale = scale_from_range(table.chart_data.get("range"))

    def build_line(row: Standing, above: Standing | None) -> Line:
        is_tied = query.is_ranked and above is not None and row.rank is not None and row.rank == above.rank
        cells = [(name, column, column.cell(row, table)) for name, column in shown]
        return Line(row, is_tied, build_whisker(row, scale), cells)

    is_pinned = rows.baseline is not None and rows.baseline not in rows.page
    return BoardTable(
        query=query,
        shown=[name for name, _ in shown],
        usual=[name for name, _ in get_default_columns(table)],
        heads=build_heads(query),
        pinned=build_line(rows.baseline, None) if is_pinned and rows.baseline else None,
        lines=[build_line(row, above) for above, row in zip([None, *rows.page], rows.page, strict=False)],
        scale=scale,
        match_count=rows.match_count,
        total=table.row_count,
        architectures=table.architectures,
        trust_levels=[Run.Trust(trust) for trust in table.trust_levels],
    )


FIXED_HEADS = {
    RANK: ("#", "Rank: tied entries share one.", False),
    "entry": ("Entry", "By title.", False),
    "multiplier": ("Multiplier", "How much compute the baseline needs for its loss, over what it used.", True),
}
"""Label, explanation and whether it sorts descending."""


def build_heads(query: BoardQuery) -> dict[str, Head]:
    heads = {name: build_head(query, name, *head, is_number=False) for name, head in FIXED_HEADS.items()}
    for name in query.columns:
        column = COLUMNS[name]
        heads[name] = build_head(
            query, name, column.label, column.explains, column.is_descending, is_number=column.is_number
        )
    return heads


def build_head(
    query: BoardQuery, name: str, label: str, explains: str, is_descending: bool, *, is_number: bool
) -> Head:
    is_sorted = query.sort == name
    return Head(
        name=name,
        label=label,
        explains=explains,
        address=query.address(sort=name, is_reversed=is_sorted and not query.is_reversed, page=1),
        is_number=is_number,
        direction=("descending" if is_descending != query.is_reversed else "ascending") if is_sorted else "",
    )
