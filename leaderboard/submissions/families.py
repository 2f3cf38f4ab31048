"""Families: entries whose graphs change nearly the same in the baseline's. One of them runs first.

A graph's changes are the patterns that it adds to the baseline's graph or removes, and the settings of the recipe that
it changes. The distance of two graphs is that of Jaccard between their changes, and more if their sizes differ
(docs/explanation/graphs.md#families has the measured pairs). An entry joins the nearest family by its first entry, so
that families do not grow from one idea to another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet
from typing_extensions import TypedDict

from leaderboard import graphs
from leaderboard.models import Entry, Run, Standing, TracedGraph
from scheduler.models import Job
from trainer.scoring.multiplier.ladder import compute_t_quantile

NEAR = 0.46
"""Largest distance from the first entry of a family."""
PER_DOUBLING = 0.2
"""What a twofold difference in parameters adds to a distance."""
COMPARED = ("patterns", "recipe", "parameters", "canonical_hash")
"""Fields of a graph's summary."""


@dataclass(frozen=True)
class Profile:
    """What a graph changes in the baseline's. `hash`: canonical; empty for graphs of older nodes."""

    changes: frozenset[str]
    parameters: float
    hash: str


def build_profile(summary: Mapping[str, Any], baseline: Mapping[str, Any]) -> Profile:
    patterns = {*summary.get("patterns", ())}, {*baseline.get("patterns", ())}
    changes = {f"+{one}" for one in patterns[0] - patterns[1]} | {f"-{one}" for one in patterns[1] - patterns[0]}
    if summary.get("recipe") and baseline.get("recipe"):  # graphs of older nodes have none
        changes |= list_changed_settings(name_groups(summary["recipe"]), name_groups(baseline["recipe"]))
    return Profile(frozenset(changes), summary.get("parameters") or 0, summary.get("canonical_hash") or "")


def name_groups(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe with its groups by name, without the names of their parameters."""
    groups = {group["name"]: {**group, "match": None} for group in recipe["groups"]}
    return {**recipe, "groups": groups}


def list_changed_settings(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted names of the settings that differ. A table that only one has is one name."""
    changed = set()
    for name in {*one, *other}:
        values = one.get(name), other.get(name)
        if all(isinstance(value, Mapping) for value in values):
            changed |= list_changed_settings(*values, prefix=f"{prefix}{name}.")  # type: ignore[arg-type]
        elif values[0] != values[1]:
            changed.add(f"{prefix}{name}")
    return changed


def compute_distance(one: Profile, other: Profile) -> float:
    """Return 0 for the same model, 1 for nothing in common. What changes nothing that is counted is near to nothing."""
    if one.hash and one.hash == other.hash:
        return 0.0
    together = one.changes | other.changes
    distance = 1 - len(one.changes & other.changes) / len(together) if together else 1.0
    if one.parameters and other.parameters:
        distance += PER_DOUBLING * abs(math.log2(one.parameters / other.parameters))
    return min(distance, 1.0)


# --- membership -------------------------------------------------------------------------------------------------------


def place_entries() -> int:
    """Give traced entries their families, oldest first; return how many. Those of older nodes' graphs have none."""
    waiting = Entry.objects.filter(family=None, kind=Entry.Kind.ARCHITECTURE, track__season__active=True)
    comparable = TracedGraph.objects.usable().filter(
        summary__has_key="patterns", baseline_graph__summary__has_key="patterns"
    )
    waiting = waiting.filter(graphs__in=comparable).distinct()
    return sum(place_entry(entry) for entry in waiting.select_related("track__season").order_by("pk"))


@transaction.atomic
def place_entry(entry: Entry) -> bool:
    graphs.lock_season(entry.track.season_id)
    graph = find_graph(entry)
    if graph is None or graph.baseline_graph is None or not graph.baseline_graph.summary.get("patterns"):
        return False
    own = build_profile(graph.summary, graph.baseline_graph.summary)
    same = TracedGraph.objects.filter(track=graph.track_id, season=graph.season_id, entry__family=F("entry"))
    near = [found for found in rank_graphs(own, same) if found[0] <= NEAR]
    family = near[0][1] if near else entry.pk
    return Entry.objects.filter(pk=entry.pk, family=None).update(family=family) == 1


def find_graph(entry: Entry) -> TracedGraph | None:
    """Return the graph that its smoke test left, if it is within the season's caps."""
    found = entry.graphs.usable().filter(track=entry.track_id, season=entry.track.season_id, job=entry.smoke_job_id)
    return found.select_related("entry", "season", "baseline_graph").first()


def rank_graphs(own: Profile, others: QuerySet[TracedGraph]) -> list[tuple[float, int]]:
    """Return the distances of other graphs and the ids of their entries, nearest first, each entry once.

    Each is compared with the baseline of its own configuration, since rates follow from the size.
    """
    others = others.filter(baseline_graph__summary__has_key="patterns", summary__has_key="patterns")
    baselines = dict(TracedGraph.objects.filter(pk__in=others.values("baseline_graph")).values_list("pk", "summary"))
    found: dict[int, float] = {}
    columns = [f"summary__{name}" for name in COMPARED]
    for entry, baseline, *values in others.values_list("entry", "baseline_graph", *columns):
        profile = build_profile(dict(zip(COMPARED, values, strict=True)), baselines[baseline])
        found[entry] = min(compute_distance(own, profile), found.get(entry, 1.0))
    return sorted((distance, entry) for entry, distance in found.items())


def find_first_runner(entry: Entry) -> Entry | None:
    """Return an approved entry of the same family that has no verdict yet, for which this one waits."""
    approved = Entry.objects.filter(family=entry.family_id, state=Entry.State.APPROVED).exclude(pk=entry.pk)
    scored = Q(runs__bits_per_byte__isnull=False, runs__state=Run.State.FINISHED, runs__budget=entry.track.budget)
    approved = approved.filter(runs__state__in=Run.UNFINISHED).exclude(scored)
    return approved.exclude(runs__job__state=Job.State.HELD).order_by("pk").first()  # its author may hold it for ever


def find_member_behind(entry: Entry) -> Entry | None:
    """Return the first other entry of its family that stopped or is below 1 with confidence; None if one is not.

    None too if a single other author made them: a spoiled copy shall not hold up the idea of others.
    """
    others = Entry.objects.filter(family=entry.family_id).exclude(pk=entry.pk)
    if others.filter(standings__table__axis="flops", standings__multiplier_high__gte=1).exists():
        return None
    is_below = Q(standings__table__axis="flops", standings__multiplier_high__lt=1)
    behind = list(others.filter(is_below | Q(runs__state=Run.State.STOPPED)).order_by("pk").distinct())
    authors = {member.author for member in behind}
    return behind[0] if entry.author in authors or len(authors) > 1 else None


@dataclass(frozen=True)
class Member:
    entry: Entry
    distance: float | None
    """From the first one; None if it has no graph any more."""
    row: Standing | None
    """By FLOPs."""


def list_members(first: Entry) -> list[Member]:
    """Return the entries of a family, oldest first."""
    members = first.members.select_related("track", "waits_for").order_by("pk")
    rows = Standing.objects.filter(entry__in=members, table__axis="flops", table__track=first.track_id)
    rows = rows.select_related("table")
    own, profile = {row.entry_id: row for row in rows}, find_profile(str(first.pk))
    ranked = rank_graphs(profile, TracedGraph.objects.filter(entry__in=members)) if profile else []
    distances = {entry: distance for distance, entry in ranked}
    return [Member(entry, distances.get(entry.pk), own.get(entry.pk)) for entry in members]


def find_profile(like: str) -> Profile | None:
    """Return the profile of an entry's id, of a graph's hash, plain or canonical, or of patterns between commas."""
    if "," in like:
        baselines = TracedGraph.objects.filter(season__active=True, entry=F("season__baseline"))
        baseline = baselines.filter(summary__has_key="patterns").last()
        return build_profile({"patterns": like.split(",")}, baseline.summary) if baseline else None
    found = TracedGraph.objects.exclude(hash="").filter(baseline_graph__summary__has_key="patterns")
    is_entry = like.isdecimal() and len(like) < 18  # of a column; a hash is longer
    found = found.filter(Q(entry=like) if is_entry else Q(hash=like) | Q(summary__canonical_hash=like))
    graph = found.select_related("baseline_graph").last()
    return build_profile(graph.summary, graph.baseline_graph.summary) if graph and graph.baseline_graph else None


# --- the pooled estimate ----------------------------------------------------------------------------------------------


class PooledDict(TypedDict):
    multiplier: float
    low: float  # 95 % interval
    high: float
    entries: int
    tau: float  # spread of the members' own multipliers, as a standard deviation of logarithms


def pool_multipliers(members: Iterable[Member]) -> PooledDict | None:
    """Pool the members' multipliers by random effects; None unless two have an interval.

    On logarithms: weights and variance between members by DerSimonian and Laird (1986, Controlled Clinical Trials
    7:177), the interval by Hartung and Knapp (2001, Statistics in Medicine 20:3875), never narrower than that of the
    members' own errors. It treats the members as independent; they share the baseline's ladder.
    """
    rows = [member.row for member in members if member.row]
    quantile = compute_t_quantile(rows[0].table.noise_freedom, 0.975) if rows else math.nan
    found = [(row.multiplier, row.multiplier_low, row.multiplier_high) for row in rows]
    known = [each for each in found if None not in each and 0 < each[1] < each[2] < math.inf]  # type: ignore[operator]
    if len(known) < 2:
        return None
    logs = [math.log(multiplier) for multiplier, _, _ in known]  # type: ignore[arg-type]
    weights = [(2 * quantile / math.log(high / low)) ** 2 for _, low, high in known]  # type: ignore[operator]
    total, freedom = sum(weights), len(known) - 1
    fixed = sum(w * log for w, log in zip(weights, logs, strict=True)) / total
    q = sum(w * (log - fixed) ** 2 for w, log in zip(weights, logs, strict=True))
    between = max(0.0, (q - freedom) / (total - sum(w * w for w in weights) / total))
    weights = [1 / (1 / w + between) for w in weights]
    total = sum(weights)
    mean = sum(w * log for w, log in zip(weights, logs, strict=True)) / total
    spread = sum(w * (log - mean) ** 2 for w, log in zip(weights, logs, strict=True)) / freedom
    half = max(quantile, compute_t_quantile(freedom, 0.975) * math.sqrt(spread)) / math.sqrt(total)
    return {
        "multiplier": math.exp(mean),
        "low": math.exp(mean - half),
        "high": math.exp(mean + half),
        "entries": len(known),
        "tau": math.sqrt(between),
    }
