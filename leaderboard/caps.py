"""Caps of a season: how large a traced entry may be, and what its scoring may cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from leaderboard.models import Entry, Ruling, Season, TracedGraph

SENTENCE_LABELS = {
    "parameters": "trained parameters",
    "stored_bytes": "stored bytes",
    "constant_bytes": "bytes of constants and of compressed calls",
    "source_bytes": "compressed bytes of source beyond main's",
    "scoring_flops": "times the baseline's FLOPs per scored token",
}
"""They follow a number in a sentence."""
TABLE_LABELS = {**SENTENCE_LABELS, "scoring_flops": "scoring FLOPs per token, relative to the baseline's"}
UNKNOWN = "not compared yet"


@dataclass(frozen=True)
class CappedValue:
    """A value of an entry, beside the season's cap if there is one."""

    name: str
    value: float | None
    """None: there is no graph of the baseline to compare with."""
    cap: float | None

    @property
    def label(self) -> str:
        return TABLE_LABELS[self.name]

    @property
    def is_over(self) -> bool:
        return self.cap is not None and self.value is not None and self.value > self.cap

    @property
    def formatted_value(self) -> str:
        return UNKNOWN if self.value is None else format_number(self.value)

    @property
    def formatted_cap(self) -> str:
        return "" if self.cap is None else format_number(self.cap)

    def explain(self) -> str:
        """Return for example "120,000 trained parameters: 20,000 over the season's cap of 100,000.", or ""."""
        if self.cap is None or self.value is None or not self.is_over:
            return ""
        excess = format_number(self.value - self.cap)
        label = SENTENCE_LABELS[self.name]
        return f"{self.formatted_value} {label}: {excess} over the season's cap of {self.formatted_cap}."


def format_number(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 or number == int(number) else f"{number:.3g}"


def list_ruled_caps() -> list[Ruling]:
    return list(Ruling.objects.in_force().filter(effect=Ruling.Effect.CAP))


def load_caps(season: Season, at: datetime, ruled: Iterable[Ruling] | None = None) -> dict[str, float]:
    """Return the caps of an entry of this time: the season's, and those of rulings before (`list_ruled_caps`)."""
    caps = dict(season.caps)
    for ruling in list_ruled_caps() if ruled is None else ruled:
        if ruling.created_at <= at and ruling.cap_value is not None:  # a constraint of the table
            caps[ruling.cap] = min(ruling.cap_value, caps.get(ruling.cap, ruling.cap_value))
    return caps


def list_values(graph: TracedGraph, ruled: Iterable[Ruling] | None = None) -> list[CappedValue]:
    """Return what the season caps, of a traced entry. Select `entry`, `season` and `baseline_graph` with the graph."""
    found = {name: graph.summary.get(name) for name in ("parameters", "stored_bytes", "constant_bytes")}
    found |= {"source_bytes": graph.entry.source_bytes, "scoring_flops": compare_scoring_flops(graph)}
    caps = {} if is_exempt(graph) else load_caps(graph.season, graph.entry.created_at, ruled)
    awaited = "scoring_flops" if "scoring_flops" in caps else ""
    return [
        CappedValue(name, value, caps.get(name))
        for name, value in found.items()
        if value is not None or name == awaited
    ]


def compare_scoring_flops(graph: TracedGraph) -> float | None:
    """Return the FLOPs per scored token, times those of the baseline at the same configuration; None: unknown."""
    own = graph.summary.get("scoring_flops_per_token")
    baseline = graph.baseline_graph.summary.get("scoring_flops_per_token") if graph.baseline_graph else None
    return None if own is None or not baseline else own / baseline


def is_exempt(graph: TracedGraph) -> bool:
    """Whether the graph has no caps: `main` and the baseline are what the season compares with."""
    return graph.entry.kind == Entry.Kind.MAIN or graph.entry_id == graph.season.baseline_id


def needs_baseline_graph(graph: TracedGraph) -> bool:
    """Whether a cap cannot be checked, since there is no graph of the baseline to compare with."""
    if is_exempt(graph) or compare_scoring_flops(graph) is not None:
        return False
    return "scoring_flops" in load_caps(graph.season, graph.entry.created_at)


def explain_missing_baseline_graph(graph: TracedGraph) -> str:
    """Return why the graph is not compared with the baseline's; empty if it is."""
    baseline = graph.baseline_graph
    if graph.season.baseline_id is None:
        return "The season has no baseline yet."
    if graph.entry_id == graph.season.baseline_id:
        return "It is the baseline, with which other graphs are compared."
    if baseline is None:
        return "The baseline has no graph of the same configuration yet."
    if baseline.is_pending:
        return "The baseline is being traced with the same configuration."
    return (
        f"The baseline could not be traced with the same configuration. {baseline.problem}" if not baseline.hash else ""
    )


def describe_cap_violations(graph: TracedGraph, ruled: Iterable[Ruling] | None = None) -> str:
    """Return which caps the graph exceeds; empty if none."""
    return " ".join(filter(None, (value.explain() for value in list_values(graph, ruled))))


def explain_source_excess(season: Season, source_bytes: int) -> str:
    """Return by how much an entry's source exceeds the cap; empty if it does not."""
    return CappedValue("source_bytes", source_bytes, load_caps(season, timezone.now()).get("source_bytes")).explain()
