"""Lists in pages, newest first. A page ends with the word that brings the next one."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, TypeVar

from django.db.models import Model, QuerySet
from ninja import Query
from ninja.errors import HttpError
from typing_extensions import TypedDict

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str, Query(max_length=100, description="The `cursor` of the page before.")]
Before = Annotated[
    int | None, Query(description="Only what has a smaller id: the `next` of the page before.", deprecated=True)
]
MARK = "before:"
Row = TypeVar("Row", bound=Model)


class Page(TypedDict):
    cursor: str | None
    """`cursor` of the next page; null on the last. Its content means nothing to anybody but this site."""
    next: int | None
    """The same as an id, for clients of old: `before` of the next page."""


def page(rows: QuerySet[Row], cursor: str, before: int | None, limit: int) -> tuple[list[Row], Page]:
    """Return one page of the rows by falling id, and what leads on. One query; raises 422 for a cursor of nobody's."""
    last = opened(cursor) if cursor else before
    rows = rows.order_by("-pk")
    found = list((rows if last is None else rows.filter(pk__lt=last))[: limit + 1])
    if len(found) <= limit:
        return found, {"cursor": None, "next": None}
    end = found[limit - 1].pk
    return found[:limit], {"cursor": closed(end), "next": end}


def closed(end: int) -> str:
    return base64.urlsafe_b64encode(f"{MARK}{end}".encode()).decode().rstrip("=")


def opened(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    number = text.removeprefix(MARK)
    if not text.startswith(MARK) or not (number.isascii() and number.isdigit() and len(number) < 19):
        raise HttpError(422, "cursor: it is not one of this site's; begin again without it.")
    return int(number)
