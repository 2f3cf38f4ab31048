"""The board's table: rows in order, cells, and links to sort and page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from leaderboard.board.columns import COLUMNS
from leaderboard.board.query import RANK, ROWS_PER_PAGE, BoardQuery, BoardRows, get_default_columns
from leaderboard.charts.multiplier_charts import build_whisker, scale_from_range
from leaderboard.models import Run, Standing, StandingsTable


def build_board_table(table: StandingsTable, query: BoardQuery, rows: BoardRows) -> dict[str, Any]:
    """Return the context of the table."""
    columns, heads = query.get_columns(table), build_heads(query)
    shown, usual = [name for name, _ in columns], [name for name, _ in get_default_columns(table)]
    scale = scale_from_range(table.chart_data.get("range"))
    pages = max(1, math.ceil(rows.match_count / ROWS_PER_PAGE))

    def build_line(row: Standing, above: Standing | None) -> dict[str, Any]:
        return {
            "row": row,
            "is_tied": query.is_ranked and above is not None and row.rank is not None and row.rank == above.rank,
            "whisker": build_whisker(row, scale),
            "cells": [(name, column, column.cell(row, table)) for name, column in columns],
        }

    is_pinned = rows.baseline is not None and rows.baseline not in rows.page
    return {
        "query": query,
        "heads": heads,
        "columns": [heads[name] for name in shown],
        "choices": [(name, column.label, name in shown) for name, column in COLUMNS.items()],
        "has_chosen_columns": shown != usual,
        "default_columns": ",".join(usual),
        "sorts": list_sorts(query, shown),
        # the baseline, if it is not among the lines
        "pinned": build_line(rows.baseline, None) if is_pinned and rows.baseline else None,
        "lines": [build_line(row, above) for above, row in zip([None, *rows.page], rows.page, strict=False)],
        "scale": scale,
        "match_count": rows.match_count,
        "total": table.row_count,
        "architectures": table.architectures,
        "trust_levels": [Run.Trust(trust) for trust in table.trust_levels],
        "unfiltered_address": query.address(words="", trust="", architecture="", page=1),
        "pages": pages,
        "previous_address": query.address(page=query.page - 1) if query.page > 1 else "",
        "next_address": query.address(page=query.page + 1) if query.page < pages else "",
    }


def list_sorts(query: BoardQuery, shown: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Return the sort menu of narrow screens."""
    labels = {RANK: "Rank", "multiplier": "Multiplier", "entry": "Entry"}
    labels |= {name: COLUMNS[name].label for name in shown}
    current = ("-" if query.is_reversed else "") + query.sort
    return [(current if name == query.sort else name, label, name == query.sort) for name, label in labels.items()]


FIXED_HEADS = {
    RANK: ("#", "Rank: tied entries share one.", False),
    "entry": ("Entry", "By title.", False),
    "multiplier": ("Multiplier", "How much compute the baseline needs for its loss, over what it used.", True),
}
"""Label, explanation and whether it sorts descending."""


def build_heads(query: BoardQuery) -> dict[str, dict[str, Any]]:
    heads = {name: (*head, False) for name, head in FIXED_HEADS.items()}
    for name in query.columns:
        column = COLUMNS[name]
        heads[name] = (column.label, column.explains, column.is_descending, column.is_number)
    return {
        name: {
            "name": name,
            "label": label,
            "explains": explains,
            "is_number": is_number,
            "address": query.address(sort=name, is_reversed=query.sort == name and not query.is_reversed, page=1),
            # for aria-sort; empty where the table is not sorted by it
            "direction": ("descending" if is_descending != query.is_reversed else "ascending")
            if query.sort == name
            else "",
        }
        for name, (label, explains, is_descending, is_number) in heads.items()
    }
