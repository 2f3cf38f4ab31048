"""What every page that keeps itself current asks: has anything changed, and when to ask again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from django.db.models import BigIntegerField, CharField, Model, Q, QuerySet
from django.http import Http404, HttpRequest

from leaderboard.models import Run
from leaderboard.rankings.standings import Standings
from scheduler.models import Event, Node
from scheduler.prepared import Later, Prepared, Row

LIVE_SECONDS = 1.5
"""How soon a page asks again while something moves; `IDLE_SECONDS` while nothing does, 0 when it never will again."""
IDLE_SECONDS = 10
OLDER = -1
"""The revision of a page that is not the latest, whatever happens."""
MOST = 2**63
"""No row's number is as large."""
NUMBER = Later("number", BigIntegerField())
"""Of the row that a page shows."""
ABOUT = Prepared(lambda: Event.objects.filter(target_kind=Later("kind", CharField()), target_id=NUMBER))
LATEST = Prepared(lambda: Event.objects.order_by("-pk").values_list("pk")[:1])


def latest_event() -> int:
    """Return the number of the last change of any state: when it grows, a page loads itself anew."""
    return next((number for (number,) in LATEST.tuples()), 0)


def revision_of(request: HttpRequest, table: Standings | None = None) -> int:
    """Return the last event before this page was begun: nothing that happens meanwhile is missed. A page that is kept
    for others has asked already. One that shows an older table of standings says `OLDER`, and loads itself anew."""
    if table is not None and table.outdone.is_set():
        return OLDER
    known: int | None = getattr(request, "revision", None)
    return latest_event() if known is None else known


def any_of(field: str, count: int) -> Q:
    """Return what asks for so many rows by their numbers; `named` gives these."""
    return reduce(or_, [Q(**{field: Later(f"number{place}", BigIntegerField())}) for place in range(count)])


def named(numbers: Sequence[int]) -> dict[str, int]:
    return {f"number{place}": number for place, number in enumerate(numbers)}


def one(question: Prepared[Row], number: int) -> Row:
    """Return the row of this number, or there is no such page."""
    found = question.first(number=number) if number < MOST else None
    if found is None:
        raise Http404
    return found


def about(target: Model) -> list[Event]:
    """Return what has happened to it."""
    return ABOUT.rows(kind=target._meta.model_name, number=target.pk)


def online_nodes() -> int:
    return Node.objects.filter(state__in=[Node.State.ONLINE, Node.State.DRAINING]).count()


def with_job(runs: QuerySet[Run]) -> QuerySet[Run]:
    return runs.select_related("entry", "track", "season", "job")
