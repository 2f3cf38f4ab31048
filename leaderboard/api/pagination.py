"""Filters and cursor pagination of lists, by falling id. Each page names the cursor of the next one."""

from __future__ import annotations

from typing import Annotated, TypeVar

from django.db.models import Model, QuerySet, TextChoices
from ninja import Query
from ninja.errors import HttpError
from typing_extensions import TypedDict

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[int | None, Query(ge=0, lt=2**63, description="The `cursor` of the previous page.")]
Row = TypeVar("Row", bound=Model)


class Page(TypedDict):
    cursor: int | None  # of the next page; null on the last page


def parse_states(value: str, states: type[TextChoices]) -> list[str]:
    """Return the states of a comma-separated list; an unknown one is a 422."""
    names = value.split(",") if value else []
    if unknown := [name for name in names if name not in states.values]:
        raise HttpError(422, f"state: there is no state {unknown[0]!r}. States: {', '.join(states.values)}.")
    return names


def paginate(rows: QuerySet[Row], cursor: int | None, limit: int) -> tuple[list[Row], Page]:
    """Return one page of the rows, and the cursor of the next: the id of the last row. One query."""
    rows = rows.order_by("-pk")
    found = list((rows if cursor is None else rows.filter(pk__lt=cursor))[: limit + 1])
    return found[:limit], {"cursor": found[limit - 1].pk if len(found) > limit else None}
