"""The board's table, ready to be drawn: which rows, in which order, with which cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leaderboard.board.columns import COLUMNS, Cell, Column
from leaderboard.board.query import PER_PAGE, RANK, USUAL, Asked, narrowed, ordered
from leaderboard.charts import multiplier_charts as pictures
from leaderboard.charts.curve_svg import Whisker
from leaderboard.charts.multiplier_charts import Scale
from leaderboard.models import Run
from leaderboard.rankings.standings import Row, Standings


@dataclass(frozen=True)
class Head:
    """The head of a column: a link that sorts by it."""

    name: str
    label: str
    explains: str
    address: str
    is_number: bool
    direction: str
    """For aria-sort; empty where the table is not sorted by it."""


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    row: Row
    rank: int | None
    is_tied: bool
    """It shares its rank with the line above."""
    whisker: Whisker | None
    cells: list[tuple[str, Column, Cell]]


@dataclass(frozen=True)
class BoardTable:
    asked: Asked
    shown: list[str]
    """Names of the columns that are shown."""
    heads: dict[str, Head]
    pinned: Line | None
    """The baseline, where it is not among the lines: it is always to be seen."""
    lines: list[Line]
    scale: Scale | None
    found: int
    """How many rows were asked for, on all pages."""
    total: int
    architectures: list[str]
    trusts: list[Run.Trust]

    @property
    def columns(self) -> list[Head]:
        return [self.heads[name] for name in self.shown]

    @property
    def choices(self) -> list[tuple[str, str, bool]]:
        """Return every column that can be chosen: name, label and whether it is."""
        return [(name, column.label, name in self.asked.columns) for name, column in COLUMNS.items()]

    @property
    def sorts(self) -> list[tuple[str, str, bool]]:
        """Return the orders of the list on a phone, which has no heads to press."""
        names = {RANK: "Rank", "multiplier": "Multiplier", "entry": "Entry"}
        names |= {name: COLUMNS[name].label for name in self.shown}
        here = ("-" if self.asked.backwards else "") + self.asked.sort
        return [
            (here if name == self.asked.sort else name, label, name == self.asked.sort) for name, label in names.items()
        ]

    @property
    def is_chosen(self) -> bool:
        return self.asked.columns != USUAL

    @property
    def usual(self) -> str:
        return ",".join(USUAL)

    @property
    def everything(self) -> str:
        """Return the address without search and filters."""
        return self.asked.address(words="", trust="", architecture="", page=1)

    @property
    def pages(self) -> int:
        return max(1, math.ceil(self.found / PER_PAGE))

    @property
    def before(self) -> str:
        return self.asked.address(page=self.asked.page - 1) if self.asked.page > 1 else ""

    @property
    def after(self) -> str:
        return self.asked.address(page=self.asked.page + 1) if self.asked.page < self.pages else ""


def table(standings: Standings, asked: Asked) -> BoardTable:
    """Lay out the rows of a page. The scale of the whiskers is that of all rows: it stays while one searches."""
    found = chosen(standings, asked)
    start = (asked.page - 1) * PER_PAGE
    page = found[start : start + PER_PAGE]
    shown = filled(standings, asked)
    scale = standings.once("scale", lambda: pictures.scale_of(standings.rows))
    baseline = standings.row(standings.baseline) if standings.baseline else None

    def line(row: Row, above: Row | None) -> Line:
        rank = rank_of(row)
        is_tied = asked.is_ranked and above is not None and rank is not None and rank == rank_of(above)
        cells = [(name, column, column.cell(row, standings)) for name, column in shown]
        return Line(row, rank, is_tied, pictures.whisker(row, scale), cells)

    return BoardTable(
        asked=asked,
        shown=[name for name, _ in shown],
        heads=heads(asked),
        pinned=line(baseline, None) if baseline and baseline not in page else None,
        lines=[line(row, above) for above, row in zip([None, *page], page, strict=False)],
        scale=scale,
        found=len(found),
        total=len(standings.rows),
        architectures=standings.once(
            "architectures", lambda: sorted({row.latest.architecture for row in standings.rows})
        ),
        trusts=standings.once("trusts", lambda: trusts(standings.rows)),
    )


def chosen(standings: Standings, asked: Asked) -> list[Row]:
    """Return the rows that were asked for, in their order; that of all rows is kept with them."""
    if asked.is_narrowed:
        return ordered(narrowed(standings.rows, asked), asked)
    return standings.once(("order", asked.sort, asked.backwards), lambda: ordered(standings.rows, asked))


def trusts(rows: Sequence[Row]) -> list[Run.Trust]:
    found = {row.trust for row in rows}
    return [trust for trust in Run.Trust if trust in found]


def filled(standings: Standings, asked: Asked) -> list[tuple[str, Column]]:
    """Return the columns to show: of the usual ones, those that some row has something for."""
    if asked.columns != USUAL:
        return asked.shown
    return standings.once(
        "columns",
        lambda: [
            (name, column) for name, column in asked.shown if any(column.key(row) is not None for row in standings.rows)
        ],
    )


def rank_of(row: Row) -> int | None:
    return row.estimate.rank if row.estimate else None


def heads(asked: Asked) -> dict[str, Head]:
    """Return the heads of all columns that can be sorted by."""
    return {name: head(name, column, asked) for name, column in {**ALWAYS, **dict(asked.shown)}.items()}


def own(label: str, explains: str, *, best_is_high: bool = False) -> Column:
    """Return a column that has a template of its own."""
    return Column(
        label=label,
        explains=explains,
        cell=lambda row, standings: Cell(""),
        key=lambda row: None,
        best_is_high=best_is_high,
        is_number=False,
    )


ALWAYS = {
    RANK: own("#", "Rank: entries that cannot be told apart share one."),
    "entry": own("Entry", "By title."),
    "multiplier": own(
        "Multiplier", "How much compute the baseline needs for its loss, over what it used.", best_is_high=True
    ),
}
"""The columns that are always there."""


def head(name: str, column: Column, asked: Asked) -> Head:
    here = asked.sort == name
    falls = column.best_is_high != asked.backwards
    return Head(
        name=name,
        label=column.label,
        explains=column.explains,
        address=asked.address(sort=name, backwards=here and not asked.backwards, page=1),
        is_number=column.is_number,
        direction=("descending" if falls else "ascending") if here else "",
    )
