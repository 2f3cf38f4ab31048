"""Caps of a season: how large a traced entry may be, and what its scoring may cost."""

from __future__ import annotations

from dataclasses import dataclass

from leaderboard.models import Entry, Season, TracedGraph

LABELS = {
    "parameters": "parameters",
    "stored_bytes": "stored bytes",
    "constant_bytes": "bytes of constants",
    "source_bytes": "compressed bytes of source beyond main's",
    "scoring_flops": "times the baseline's FLOPs per scored token",
}


@dataclass(frozen=True)
class CappedValue:
    """A value of an entry, beside the season's cap if there is one."""

    label: str
    value: float
    cap: float | None

    @property
    def is_over(self) -> bool:
        return self.cap is not None and self.value > self.cap

    @property
    def written(self) -> str:
        return format_number(self.value)

    @property
    def written_cap(self) -> str:
        return "" if self.cap is None else format_number(self.cap)

    def explain(self) -> str:
        """Return for example "120,000 parameters: 20,000 over the season's cap of 100,000."; empty within the cap."""
        if self.cap is None or not self.is_over:
            return ""
        excess = format_number(self.value - self.cap)
        return f"{self.written} {self.label}: {excess} over the season's cap of {self.written_cap}."


def format_number(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 or number == int(number) else f"{number:.3g}"


def list_values(graph: TracedGraph) -> list[CappedValue]:
    """Return what the season caps, of a traced entry. The baseline's scoring costs one query."""
    found = {name: graph.summary.get(name) for name in ("parameters", "stored_bytes", "constant_bytes")}
    found["source_bytes"] = graph.entry.source_bytes
    reference = find_baseline_graph(graph)
    flops = graph.summary.get("scoring_flops_per_token")
    if reference is not None and flops and reference.summary.get("scoring_flops_per_token"):
        found["scoring_flops"] = flops / reference.summary["scoring_flops_per_token"]
    return [build_value(graph.season, name, value) for name, value in found.items() if value is not None]


def build_value(season: Season, name: str, value: float) -> CappedValue:
    return CappedValue(LABELS[name], value, season.caps.get(name))


def find_baseline_graph(graph: TracedGraph) -> TracedGraph | None:
    """Return the graph of the season's baseline on the same track."""
    same = TracedGraph.objects.usable().filter(track=graph.track_id, season=graph.season_id)
    return same.filter(entry=graph.season.baseline_id).last()


def explain_excess(graph: TracedGraph) -> str:
    """Return which caps the graph exceeds; empty if none. `main` is what the season compares with."""
    if graph.entry.kind == Entry.Kind.MAIN:
        return ""
    return " ".join(filter(None, (value.explain() for value in list_values(graph))))


def explain_source_excess(season: Season, source_bytes: int) -> str:
    """Return by how much an entry's source exceeds the cap; empty if it does not."""
    return build_value(season, "source_bytes", source_bytes).explain()
