"""Descent and credit: what an entry builds on, and what confirmed records gained.

The gain of a record is its multiplier over that of the record before it on its track, or over 1, as today's ladder
reads them; a step that has turned counts as 1. A contributor's verified gain is the product over all records. A record
is also credited to the authors of what it builds on, in numbers of their own: which part is whose is not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from typing_extensions import TypedDict

from leaderboard.charts.frontier import load_records
from leaderboard.models import Entry, StandingsTable, TracedGraph
from leaderboard.submissions import families

MAX_ANCESTORS = 16


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
    """Return the authors of confirmed records and of what these build on, the largest verified gain first."""
    found: dict[tuple[str, object], Contributor] = {}
    for table in StandingsTable.objects.filter(axis="flops").order_by("track__position", "track"):
        for record in load_records(table):
            line = [*list_ancestors(record.row.entry), record.row.entry]
            if line[-1].kind == Entry.Kind.MAIN:
                continue  # what was merged has an author of its own
            credit = Credit(line[-1], max(record.over or 1.0, 1.0))
            keys = [identify_author(entry) for entry in line]
            for key, entry in zip(keys, line, strict=True):
                found.setdefault(key, Contributor(entry.author))
            found[keys[-1]].records.append(credit)
            for key in {*keys} - {keys[-1]}:
                found[key].built_on.append(credit)
    return sorted(found.values(), key=lambda one: (-one.gain, -one.gain_built_on, one.name))


def identify_author(entry: Entry) -> tuple[str, object]:
    """Return a key that entries of the same person share: names are free text, accounts are not."""
    if entry.requested_by_id:
        return "user", entry.requested_by_id
    number = entry.pull_request.author_id if entry.pull_request else None
    return ("github", number) if number else ("name", entry.author)


def list_ancestors(entry: Entry) -> list[Entry]:
    """Return what an entry builds on, the oldest first. One query for each."""
    found: list[Entry] = []
    while entry.based_on and len(found) < MAX_ANCESTORS:
        entry = entry.based_on
        found.insert(0, entry)
    return found


def propose_ancestor(entry: Entry) -> Entry | None:
    """Return the nearest earlier entry of another commit in its family; None if its author has named one."""
    if entry.based_on_id or not entry.family_id or entry.family_id == entry.pk:
        return None
    earlier = Entry.objects.filter(family=entry.family_id, pk__lt=entry.pk).exclude(sha=entry.sha)
    profile = families.find_profile(str(entry.pk))
    ranked = families.rank_graphs(profile, TracedGraph.objects.filter(entry__in=earlier)) if profile else []
    return Entry.objects.filter(pk=ranked[0][1]).first() if ranked else None
