"""Filters and cursor pagination of lists, by falling id. Each page names the cursor of the next one."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, TypeVar

from django.db.models import Model, QuerySet, TextChoices
from ninja import Query
from ninja.errors import HttpError
from typing_extensions import TypedDict

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str, Query(max_length=100, description="The `cursor` of the previous page.")]
Before = Annotated[
    int | None, Query(description="Rows with a smaller id only: the `next` of the previous page.", deprecated=True)
]
PREFIX = "before:"
Row = TypeVar("Row", bound=Model)


class Page(TypedDict):
    cursor: str | None  # of the next page, opaque; null on the last page
    next: int | None  # deprecated: `before` of the next page


def parse_states(value: str, states: type[TextChoices]) -> list[str]:
    """Return the states of a comma-separated list; an unknown one is a 422."""
    names = value.split(",") if value else []
    if unknown := [name for name in names if name not in states.values]:
        raise HttpError(422, f"state: there is no state {unknown[0]!r}. States: {', '.join(states.values)}.")
    return names


def paginate(rows: QuerySet[Row], cursor: str, before: int | None, limit: int) -> tuple[list[Row], Page]:
    """Return one page of the rows, and its links to the next. One query; an invalid cursor is a 422."""
    last = decode_cursor(cursor) if cursor else before
    rows = rows.order_by("-pk")
    found = list((rows if last is None else rows.filter(pk__lt=last))[: limit + 1])
    if len(found) <= limit:
        return found, {"cursor": None, "next": None}
    end = found[limit - 1].pk
    return found[:limit], {"cursor": encode_cursor(end), "next": end}


def encode_cursor(last: int) -> str:
    return base64.urlsafe_b64encode(f"{PREFIX}{last}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    number = text.removeprefix(PREFIX)
    if not text.startswith(PREFIX) or not (number.isascii() and number.isdigit() and len(number) < 19):
        raise HttpError(422, "cursor: invalid. Begin again without a cursor.")
    return int(number)
