"""Compares up to ten runs: settings, scores, multipliers of their entries."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from django.utils.text import get_text_list

from leaderboard import formatting
from leaderboard.models import Run, Score
from leaderboard.models.standings import get_entry_name
from leaderboard.rankings import explanations
from leaderboard.rankings.standings import compute_standings
from leaderboard.reproduction import build_recipe
from trainer.scoring.multiplier import MultiplierRatio, TrackComparison

LISTED_ELSEWHERE = ("format", "identity", "config", "seed", "budget", "arch")
"""Keys of `run.json` that stand elsewhere, or twice."""


PHRASES = (
    ("better", "is ahead of {}"),
    ("tied", "cannot be distinguished from {}"),
    ("unknown", "cannot be compared with {} yet"),
)


Setting = tuple[str, tuple[str, ...]]
"""A setting and its value in each run; empty where a run lacks it."""


def collect_settings(run: Run) -> dict[str, str]:
    """Return all settings of a run by dotted name. The run has its entry, track and season."""
    facts = {
        "architecture": run.entry.architecture,
        "commit": run.entry.sha[:10],
        "track": run.track.name,
        "season": run.season.name,
        "budget": formatting.budget(run.budget),
        "seed": run.seed,
        "machine": run.node_class,
        "starts from": f"run {run.start_run_id}" if run.start_run_id else "",
    }
    config = run.config
    resolved = config.get("config", {}).get("resolved", {}) if isinstance(config.get("config"), dict) else {}
    recorded = {name: value for name, value in config.items() if name not in LISTED_ELSEWHERE}
    whole = recorded if config else build_recipe(run)
    return {
        name: value
        for name, value in flatten_table({**facts, **whole, "train": resolved or whole.get("train")})
        if value
    }


def flatten_table(table: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Yield dotted names and values; items of a list are named by their "name"."""
    for name, value in table.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
            value = {str(item["name"]): {key: of for key, of in item.items() if key != "name"} for item in value}
        if isinstance(value, dict):
            yield from flatten_table(value, f"{before}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{before}{name}", f"{value:.6g}" if isinstance(value, float) else text


def compare_settings(runs: Sequence[Run]) -> tuple[list[Setting], list[Setting]]:
    """Return the settings in which the runs differ, and the others."""
    known = [collect_settings(run) for run in runs]
    names = dict.fromkeys(name for settings in known for name in settings)
    rows = [(name, tuple(settings.get(name, "") for settings in known)) for name in names]
    differ = [row for row in rows if len(set(row[1])) > 1]
    return differ, [row for row in rows if len(set(row[1])) == 1]


# --- multipliers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    ratio: MultiplierRatio | None

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "unknown"
        return "better" if self.ratio.low > 1 else "worse" if self.ratio.high < 1 else "tied"

    @property
    def number(self) -> str:
        return f"{self.ratio.cm:.3f}" if self.ratio else formatting.MISSING

    @property
    def interval(self) -> str:
        return f"{self.ratio.low:.3f}{formatting.SPACE}to{formatting.SPACE}{self.ratio.high:.3f}" if self.ratio else ""


@dataclass(frozen=True)
class Pairs:
    """Entries against each other, over all their eligible runs."""

    entries: list[tuple[int, str]]
    """Id and title, best first."""
    rows: list[list[Cell | None]]
    """A row's entry over a column's; None on the diagonal."""
    sentences: list[str]
    scale: str


def compare_pairs(runs: Sequence[Run]) -> Pairs | None:
    """Compare the entries of runs of one track; None if fewer than two have a multiplier."""
    if not runs:
        return None
    titles = {run.entry_id: run.entry.title for run in runs}
    standings = compute_standings(runs[0].track, entries=titles)
    rows = [row for entry in titles if (row := standings.get_row(entry)) is not None and row.estimate is not None]
    rows.sort(key=lambda row: -((row.estimate and row.estimate.cm) or 0))
    entries = [(row.entry, titles[row.entry]) for row in rows]
    if len(entries) < 2 or standings.comparison is None:
        return None
    cells = build_cells(standings.comparison, [get_entry_name(entry) for entry, _ in entries])
    scale = formatting.budget(runs[0].track.budget)
    return Pairs(entries, cells, describe_pairs(entries, cells), scale)


def build_cells(board: TrackComparison, names: Sequence[str]) -> list[list[Cell | None]]:
    pairs = list(combinations(names, 2))
    ratios = dict(zip(pairs, board.ratios(pairs), strict=True))
    back = {
        (two, one): found and MultiplierRatio(1 / found.cm, 1 / found.high, 1 / found.low)
        for (one, two), found in ratios.items()
    }
    known = ratios | back
    return [[None if one == two else Cell(known[one, two]) for two in names] for one in names]


def describe_pairs(entries: Sequence[tuple[int, str]], cells: Sequence[Sequence[Cell | None]]) -> list[str]:
    """Return a sentence for each entry, about those after it."""
    sentences = []
    for i, (_, title) in enumerate(entries[:-1]):
        groups: dict[str, list[str]] = defaultdict(list)
        for (_, other), cell in zip(entries[i + 1 :], cells[i][i + 1 :], strict=True):
            if cell and cell.ratio and cell.verdict == "better":
                other += f" (which needs {explanations.format_percent(cell.ratio.cm - 1)} more compute to get as far)"
            groups[cell.verdict if cell else ""].append(other)
        verdicts = [
            phrase.format(get_text_list(groups[verdict], "and")) for verdict, phrase in PHRASES if groups[verdict]
        ]
        if verdicts:
            sentences.append(f"{title} {' and '.join(verdicts)}.")
    return sentences


# --- scores ----------------------------------------------------------------------------------------------------------


def build_score_rows(runs: Sequence[Run], scores: Iterable[Score]) -> list[tuple[str, list[Score | None]]]:
    """Return a row for each score: held-out text first, then the lm-eval tasks."""
    found = {(score.name, score.run_id): score for score in scores}
    names = sorted({name for name, _ in found}, key=lambda name: ("/" in name, name))
    return [(name, [found.get((name, run.pk)) for run in runs]) for name in names]
