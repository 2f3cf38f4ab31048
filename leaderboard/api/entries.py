"""Entries with their runs, estimates and smoke results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Router
from ninja.errors import HttpError
from typing_extensions import TypedDict

from leaderboard.api.pagination import Cursor, Limit, Page, paginate, parse_states
from leaderboard.contributors import ContributorDict, list_ancestors, list_contributors
from leaderboard.graphs import GraphFileDict, list_download_links
from leaderboard.integrations.github import comment_text
from leaderboard.models import Entry, Ruling, Run, Standing, TracedGraph
from leaderboard.models.entries import EntryDict
from leaderboard.models.rulings import RulingDict
from leaderboard.models.runs import RunDict
from leaderboard.models.standings import EstimateDict
from leaderboard.rankings.standings_store import load_standings
from leaderboard.submissions import families, run_estimates, stations
from leaderboard.submissions.families import PooledDict
from leaderboard.submissions.stations import StationDict

router = Router()
MAX_WORDS = 8


class EntryRow(EntryDict):
    distance: float | None  # from the graph that `like` names, or from the family's first; null without one
    multiplier: float | None  # by FLOPs; null before it has one
    low: float | None  # of the 95 % interval
    high: float | None


class EntryPage(Page):
    items: list[EntryRow]


class FamilyDict(TypedDict):
    family: int  # its first entry
    track: str
    pooled: PooledDict | None  # null: fewer than two members have an interval
    members: list[EntryRow]


class EntryDetail(EntryDict):
    descent: list[int]  # entries that it builds on, the first one first
    stations: list[StationDict]  # its way through the chain of tracks; empty without one
    smoke: dict[str, Any]
    smoke_sentence: str
    graph: dict[str, Any] | None  # what `dailytrain graph --json` prints; null before it is traced
    graph_files: list[GraphFileDict]
    estimate: dict[str, Any] | None  # of its time and cost; null after its start
    standing: EstimateDict | None  # its multiplier; null before it has one
    runs: list[RunDict]


@router.get("/entries", response=EntryPage)
def entries(
    request: HttpRequest,
    state: str = "",
    track: str = "",
    author: str = "",
    pattern: str = "",
    like: str = "",
    text: str = "",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> EntryPage:
    """Entries, newest first. `state` takes several states, separated by commas.

    `pattern`: an operator that the graph calls, such as `aten::cumsum`, or one of the patterns of `dailytrain graph
    --json`. `like`: an entry's id, a graph's `hash` or `canonical_hash`, or several patterns separated by commas; then
    the nearest entries come first, in one page. `text`: words of title, hypothesis, architecture or author.
    """
    rows = Entry.objects.select_related("track")
    if pattern:
        rows = rows.filter(graphs__in=TracedGraph.objects.with_pattern(pattern)).distinct()
    for word in text.split()[:MAX_WORDS]:
        fields = ("title", "hypothesis", "architecture", "author")
        rows = rows.filter(Q(**{f"{name}__icontains": word for name in fields}, _connector=Q.OR))
    filters = {"state__in": parse_states(state, Entry.State), "track__slug": track, "author__iexact": author}
    rows = rows.filter(**{name: value for name, value in filters.items() if value})
    if like:
        if (profile := families.find_profile(like)) is None:
            raise HttpError(422, "like: no graph that is compared with the baseline has this id or hash.")
        ranked = families.rank_graphs(profile, TracedGraph.objects.filter(entry__in=rows.values("pk")))[:limit]
        found = rows.in_bulk([entry for _, entry in ranked])
        return {"items": build_rows([(found[pk], distance) for distance, pk in ranked]), "cursor": None}
    page, links = paginate(rows, cursor, limit)
    return {"items": build_rows([(entry, None) for entry in page]), **links}


def build_rows(
    found: Sequence[tuple[Entry, float | None]], standings: Iterable[Standing] | None = None
) -> list[EntryRow]:
    """Return entries and their distances as rows, with the multipliers of their tracks, which are read if not given."""
    if standings is None:
        entries = [entry for entry, _ in found]
        standings = Standing.objects.filter(entry__in=entries, table__axis="flops").defer("ties")
    own = {row.entry_id: row for row in standings}
    rows: list[Any] = [
        {
            **entry.to_dict(),
            "distance": distance,
            "multiplier": row.multiplier if (row := own.get(entry.pk)) else None,
            "low": row.multiplier_low if row else None,
            "high": row.multiplier_high if row else None,
        }
        for entry, distance in found
    ]
    return rows


@router.get("/families/{entry_id}", response=FamilyDict)
def get_family(request: HttpRequest, entry_id: int) -> FamilyDict:
    """A family of near entries, by its first one, with one pooled multiplier by FLOPs (random effects)."""
    first = get_object_or_404(Entry.objects.select_related("track"), pk=entry_id, family=entry_id)
    members = families.list_members(first)
    standings = [member.row for member in members if member.row]
    rows = build_rows([(member.entry, member.distance) for member in members], standings)
    pooled = families.pool_multipliers(members)
    return {"family": entry_id, "track": first.track.slug, "pooled": pooled, "members": rows}


@router.get("/rulings", response=list[RulingDict])
def rulings(request: HttpRequest) -> list[RulingDict]:
    """All rulings, newest first: public decisions about which entries do not rank, and new caps."""
    return [ruling.to_dict() for ruling in Ruling.objects.prefetch_related("entries")]


@router.get("/contributors", response=list[ContributorDict])
def contributors(request: HttpRequest) -> list[ContributorDict]:
    """Authors of confirmed records and of what these build on, the largest verified gain first."""
    return [contributor.to_dict() for contributor in list_contributors()]


@router.get("/entries/{entry_id}", response=EntryDetail)
def get_entry(request: HttpRequest, entry_id: int) -> EntryDetail:
    """An entry with its runs, its multiplier and the result of its smoke test (a `SmokeResult`; empty: none yet)."""
    entry = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    table = load_standings(entry.track)
    row = table.get_row(entry.pk)
    graph = entry.graphs.filter(track=entry.track).exclude(hash="").select_related("job").last()
    ahead = run_estimates.estimate_run(entry) if run_estimates.is_before_start(entry) else None
    return {
        **entry.to_dict(),
        "descent": [ancestor.pk for ancestor in list_ancestors(entry)],
        "stations": [station.to_dict() for station in stations.list_stations(entry)],
        "smoke": entry.smoke,
        "smoke_sentence": entry.smoke_sentence,
        "graph": graph.summary if graph else None,
        "graph_files": list_download_links(graph),
        "estimate": ahead.to_dict() if ahead else None,
        "standing": row.estimate_dict(table) if row else None,
        "runs": [run.to_dict() for run in Run.objects.with_entry().filter(entry=entry)],
    }


MARKDOWN = {200: {"description": "The text.", "content": {"text/markdown": {"schema": {"type": "string"}}}}}


@router.get("/entries/{entry_id}/summary", openapi_extra={"responses": MARKDOWN})
def summary(request: HttpRequest, entry_id: int) -> HttpResponse:
    """An entry's status in Markdown, as in the comment on its pull request; for the summary of a CI job."""
    entry = get_object_or_404(Entry.objects.select_related("track__season", "smoke_job"), pk=entry_id)
    text = comment_text.describe_entry(entry, timezone.now())
    return HttpResponse(text, content_type="text/markdown; charset=utf-8")
