"""A visitor's query of the board: order, search, filters, columns, page. All of it is in the address."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.db.models import BooleanField, Expression, ExpressionWrapper, F, Q, QuerySet
from django.db.models.functions import Lower
from django.http import QueryDict

from leaderboard.board.columns import COLUMNS, DEFAULT_COLUMNS, Column
from leaderboard.models import Run, Standing, StandingsTable
from trainer.scoring.multiplier import AXES, Axis

ROWS_PER_PAGE = 50
MAX_SEARCH_LENGTH = 100
RANK = "rank"
SORTS = (RANK, "multiplier", "entry", *COLUMNS)


def parse_axis(query: QueryDict) -> Axis:
    """Return the axis of `?axis=`, FLOPs by default."""
    return next((axis for axis in AXES if axis == query.get("axis")), AXES[0])


@dataclass(frozen=True, kw_only=True)
class BoardQuery:
    """A visitor's query. Invalid values are ignored."""

    axis: Axis = AXES[0]
    sort: str = RANK
    is_reversed: bool = False
    words: str = ""
    trust: str = ""
    architecture: str = ""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    page: int = 1

    @classmethod
    def from_address(cls, query: QueryDict) -> BoardQuery:
        sort = query.get("sort", RANK)
        name = sort.removeprefix("-")
        page = query.get("page", "1")
        chosen = {name for value in query.getlist("columns") for name in value.split(",")}
        return cls(
            axis=parse_axis(query),
            sort=name if name in SORTS else RANK,
            is_reversed=sort.startswith("-") and name in SORTS,
            words=query.get("q", "").strip()[:MAX_SEARCH_LENGTH].replace("\0", ""),
            trust=next((trust for trust in Run.Trust.values if trust == query.get("trust")), ""),
            architecture=query.get("architecture", "")[:MAX_SEARCH_LENGTH].replace("\0", ""),
            columns=tuple(name for name in COLUMNS if name in chosen) or DEFAULT_COLUMNS,
            page=min(max(int(page), 1), 10_000) if page.isascii() and page.isdigit() and len(page) < 6 else 1,
        )

    @property
    def is_ranked(self) -> bool:
        return self.sort == RANK and not self.is_reversed

    @property
    def is_filtered(self) -> bool:
        return bool(self.words or self.trust or self.architecture)

    def get_columns(self, table: StandingsTable) -> list[tuple[str, Column]]:
        """Return the chosen columns, else the default ones that have values."""
        if self.columns == DEFAULT_COLUMNS:
            return get_default_columns(table)
        return [(name, column) for name, column in COLUMNS.items() if name in self.columns]

    def address(self, **changes: Any) -> str:
        """Return the query string with changes, without default values."""
        to = replace(self, **changes)
        values = {
            "axis": to.axis if to.axis != AXES[0] else "",
            "q": to.words,
            "trust": to.trust,
            "architecture": to.architecture,
            "sort": ("-" if to.is_reversed else "") + to.sort if not to.is_ranked else "",
            "columns": ",".join(to.columns) if to.columns != DEFAULT_COLUMNS else "",
            "page": str(to.page) if to.page > 1 else "",
        }
        return "?" + urlencode({name: value for name, value in values.items() if value}, safe=",")

    def get_order(self) -> list[Expression | str]:
        if self.sort == RANK:
            return ["-position" if self.is_reversed else "position"]
        fixed: dict[str, tuple[Any, bool]] = {
            "multiplier": (F("multiplier"), True),
            "entry": (Lower("entry__title"), False),
        }
        column = COLUMNS.get(self.sort)
        order, is_descending = (column.order, column.is_descending) if column else fixed[self.sort]
        is_descending = is_descending != self.is_reversed
        return [order.desc(nulls_last=True) if is_descending else order.asc(nulls_last=True), "position"]

    def filter_rows(self, table: StandingsTable) -> QuerySet[Standing]:
        rows = table.rows.order_by(*self.get_order())
        if self.trust:
            rows = rows.filter(trust=self.trust)
        if self.architecture:
            rows = rows.filter(entry__architecture=self.architecture)
        for word in self.words.casefold().split():
            rows = rows.filter(search_text__contains=word)
        return rows


def get_default_columns(table: StandingsTable) -> list[tuple[str, Column]]:
    """Return the default columns that have values."""
    empty = [F(field) for field in table.empty_columns]
    return [(name, COLUMNS[name]) for name in DEFAULT_COLUMNS if COLUMNS[name].order not in empty]


@dataclass(frozen=True)
class BoardRows:
    page: list[Standing]
    baseline: Standing | None
    leader: Standing | None
    records: list[Standing]
    """Entries whose confirmation broke the record, now or once."""
    match_count: int
    """Rows that match, on all pages."""


def load_board_rows(table: StandingsTable, query: BoardQuery) -> BoardRows:
    """Read a page's rows, the baseline, the leader and the records. One query; two where rows are filtered."""
    if table.pk is None:
        return BoardRows([], None, None, [], 0)
    matching, start = query.filter_rows(table), (query.page - 1) * ROWS_PER_PAGE
    page = matching.values("pk")[start : start + ROWS_PER_PAGE]
    rows = list(
        table.rows.select_related("entry")
        .defer("ties")
        .annotate(is_on_page=ExpressionWrapper(Q(pk__in=page), output_field=BooleanField()))
        .filter(Q(is_on_page=True) | Q(is_baseline=True) | Q(is_record=True) | Q(entry=table.leader_id))
        .order_by(*query.get_order())
    )
    return BoardRows(
        page=[row for row in rows if row.is_on_page],
        baseline=next((row for row in rows if row.is_baseline), None),
        leader=next((row for row in rows if row.entry_id == table.leader_id), None),
        records=[row for row in rows if row.is_record],
        match_count=matching.count() if query.is_filtered else table.row_count,
    )
