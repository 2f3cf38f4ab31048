"""Descent and credit: what an entry builds on, and what confirmed records gained.

The gain of a record is its multiplier over the largest of the records before it on its track, or over 1, as today's
ladder reads them, and at least 1. A contributor's verified gain is the product over the records of this season. A
record is also credited to the authors of what it builds on, in numbers of their own: which part is whose is not
measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db.models import QuerySet
from typing_extensions import TypedDict

from leaderboard.charts.frontier import get_multiplier, load_records
from leaderboard.models import Entry, Run, StandingsTable, TracedGraph
from leaderboard.rankings.trust import RELIABLE
from leaderboard.submissions import families, policy
from leaderboard.submissions.stations import IDENTITY

MAX_ANCESTORS = 16
MAX_COMPARED = 8
"""Most members of a family whose graphs are read for a page."""


class ContributorDict(TypedDict):
    name: str
    gain: float  # product of the gains of own records
    gain_built_on: float  # the same of records of others that build on entries of this author
    records: list[int]  # entries
    built_on: list[int]


class Credit(NamedTuple):
    entry: Entry
    gain: float


@dataclass
class Contributor:
    name: str
    records: list[Credit] = field(default_factory=list)
    built_on: list[Credit] = field(default_factory=list)

    @property
    def gain(self) -> float:
        return math.prod(credit.gain for credit in self.records)

    @property
    def gain_built_on(self) -> float:
        return math.prod(credit.gain for credit in self.built_on)

    def to_dict(self) -> ContributorDict:
        return {
            "name": self.name,
            "gain": self.gain,
            "gain_built_on": self.gain_built_on,
            "records": [credit.entry.pk for credit in self.records],
            "built_on": [credit.entry.pk for credit in self.built_on],
        }


def list_contributors() -> list[Contributor]:
    """Return the authors of confirmed records and of what these build on, the largest verified gain first.

    An entry counts once, where it gained most, not on each track of its way.
    """
    credits: dict[tuple[str, ...], Credit] = {}
    for table in StandingsTable.objects.filter(axis="flops").order_by("track__position", "track"):
        best = 1.0
        for record in load_records(table):
            entry, multiplier = record.row.entry, get_multiplier(record.row)
            gain, best = max(multiplier / best, 1.0), max(multiplier, best)
            way = tuple(getattr(entry, name) for name in IDENTITY)
            if entry.kind != Entry.Kind.MAIN and (way not in credits or credits[way].gain < gain):
                credits[way] = Credit(entry, gain)  # what was merged to main has an author of its own
    loaded = load_descent({credit.entry.pk for credit in credits.values()})
    creditable = {*filter_creditable(Entry.objects.filter(pk__in=loaded)).values_list("pk", flat=True)}
    keys = identify_authors(loaded.values())
    found: dict[tuple[str, str], Contributor] = {}
    for credit in credits.values():
        own = keys[credit.entry.pk]
        found.setdefault(own, Contributor(credit.entry.author)).records.append(credit)
        ancestors = [each for each in list_ancestors(credit.entry, loaded) if each.pk in creditable]
        for key, name in {keys[each.pk]: each.author for each in ancestors if keys[each.pk] != own}.items():
            found.setdefault(key, Contributor(name)).built_on.append(credit)
    return sorted(found.values(), key=lambda one: (-one.gain, -one.gain_built_on, one.name))


def identify_authors(entries: Collection[Entry]) -> dict[int, tuple[str, str]]:
    """Return keys by entry, which entries of the same person share: names are free text, accounts are not."""
    numbers = policy.read_github_numbers({entry.requested_by_id for entry in entries})
    return {
        entry.pk: policy.identify_person(policy.get_github_number(entry), entry.requested_by_id, numbers)
        or ("name", entry.author)
        for entry in entries
    }


def filter_creditable(entries: QuerySet[Entry]) -> QuerySet[Entry]:
    """Return the entries that have a scored run to rely on and still stand."""
    scored = Run.objects.filter(state=Run.State.FINISHED, bits_per_byte__isnull=False, trust__in=RELIABLE)
    fallen = [Entry.State.REJECTED, Entry.State.WITHDRAWN]
    return entries.filter(pk__in=scored.values("entry"), ruling=None).exclude(state__in=fallen)


def load_descent(wanted: set[int | None]) -> dict[int, Entry]:
    """Return entries and all that they build on, by id. One query for each step."""
    found: dict[int, Entry] = {}
    for _ in range(MAX_ANCESTORS + 1):
        if not (wanted := wanted - {*found, None}):
            break
        step = Entry.objects.select_related("pull_request").in_bulk(list(wanted))
        found |= step
        wanted = {entry.based_on_id for entry in step.values()}
    return found


def list_ancestors(entry: Entry, loaded: Mapping[int, Entry] | None = None) -> list[Entry]:
    """Return what an entry builds on, the oldest first. It ends at an entry that it has seen."""
    loaded = load_descent({entry.based_on_id}) if loaded is None else loaded
    line = [entry]
    while (ancestor := loaded.get(line[0].based_on_id or 0)) and ancestor not in line and len(line) <= MAX_ANCESTORS:
        line.insert(0, ancestor)
    return line[:-1]


def list_descendants(entry: Entry) -> QuerySet[Entry]:
    """Return the approved entries with a result that build on it."""
    return filter_creditable(Entry.objects.approved().filter(based_on=entry)).order_by("pk")


def propose_ancestor(entry: Entry) -> Entry | None:
    """Return the nearest of its family's first entries with a result, of another commit; None if its author has
    named one."""
    if entry.based_on_id or not entry.family_id or entry.family_id == entry.pk:
        return None
    earlier = Entry.objects.filter(family=entry.family_id, pk__lt=entry.pk).exclude(sha=entry.sha)
    first = {each.pk: each for each in filter_creditable(earlier).order_by("pk")[:MAX_COMPARED]}
    profile = families.find_profile(str(entry.pk)) if first else None
    ranked = families.rank_graphs(profile, TracedGraph.objects.filter(entry__in=first)) if profile else []
    return first[ranked[0][1]] if ranked else None
