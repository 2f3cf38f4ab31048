"""Any answer of the API as CSV: `?format=csv`.

A list is one row for each item. An object of lists, as the queue, is the rows of all lists, with the list's name in the
first column. Any other object is one row. Objects inside a row become columns with a dot: `scores.blimp/acc.value`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula; titles are untrusted."""


def write_csv(answer: Any) -> str:
    rows = [dict(flatten(row)) for row in list_rows(answer)]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(columns)
    out.writerows([format_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def list_rows(answer: Any) -> list[Mapping[str, Any]]:
    if isinstance(answer, list):
        return answer
    if "items" in answer:
        return answer["items"]  # type: ignore[no-any-return]
    if all(isinstance(value, list) for value in answer.values()):
        return [{"list": name, **row} for name, rows in answer.items() for row in rows]
    return [answer]


def flatten(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def format_cell(value: Any) -> Any:
    if isinstance(value, list):
        value = " ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_PREFIXES) else value
    return "" if value is None else value
