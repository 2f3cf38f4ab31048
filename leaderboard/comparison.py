"""Up to ten runs beside each other: where their settings differ, what their entries' multipliers say; as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from leaderboard import formatting
from leaderboard.models import Run, Score
from leaderboard.models.standings import get_entry_name
from leaderboard.rankings import explanations
from leaderboard.rankings.standings import compute_standings
from leaderboard.reproduction import build_recipe
from trainer.scoring.multiplier import MultiplierRatio, TrackComparison

ALIKE = ("format", "identity", "config", "seed", "budget", "arch")
"""Of `run.json`: what stands elsewhere, or twice."""


@dataclass(frozen=True)
class Difference:
    """A setting, and its value in each run; empty where a run does not have it."""

    name: str
    values: tuple[str, ...]


def settings(run: Run) -> dict[str, str]:
    """Return everything that was set for a run, by dotted names. The run has its entry, track and season."""
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
    said = run.config
    resolved = said.get("config", {}).get("resolved", {}) if isinstance(said.get("config"), dict) else {}
    whole = {name: value for name, value in said.items() if name not in ALIKE} if said else build_recipe(run)
    return {name: value for name, value in flat({**facts, **whole, "train": resolved or whole.get("train")}) if value}


def flat(table: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Yield names and values; a list of named things is a table of them."""
    for name, value in table.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
            value = {item["name"]: {key: of for key, of in item.items() if key != "name"} for item in value}
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", value if isinstance(value, str) else json.dumps(value)


def differences(runs: Sequence[Run]) -> tuple[list[Difference], list[Difference]]:
    """Return the settings in which these runs differ, and those in which they do not."""
    known = [settings(run) for run in runs]
    names = dict.fromkeys(name for one in known for name in one)
    rows = [Difference(name, tuple(one.get(name, "") for one in known)) for name in names]
    differ = [row for row in rows if len(set(row.values)) > 1]
    return differ, [row for row in rows if len(set(row.values)) == 1]


# --- multipliers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """How one entry does against another."""

    ratio: MultiplierRatio | None

    @property
    def verdict(self) -> str:
        """better, worse, tied; unknown where there is no interval."""
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
    """Entries against each other, as the board knows them: all their runs that count, not only those chosen here."""

    entries: list[tuple[int, str]]
    """Number and title, the best first."""
    rows: list[list[Cell | None]]
    """A row's entry over a column's; None on the diagonal."""
    sentences: list[str]
    scale: str


def compare_pairs(runs: Sequence[Run]) -> Pairs | None:
    """Return the entries of these runs of one track against each other; None where fewer than two are compared."""
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
    """Return how each does against each other. What b needs for a is one over what a needs for b."""
    pairs = list(combinations(names, 2))
    ratios = dict(zip(pairs, board.ratios(pairs), strict=True))
    back = {
        (two, one): found and MultiplierRatio(1 / found.cm, 1 / found.high, 1 / found.low)
        for (one, two), found in ratios.items()
    }
    known = ratios | back
    return [[None if one == two else Cell(known[one, two]) for two in names] for one in names]


def describe_pairs(entries: Sequence[tuple[int, str]], cells: Sequence[Sequence[Cell | None]]) -> list[str]:
    """Return a sentence for each entry and those after it."""
    found = []
    for i, (_, title) in enumerate(entries[:-1]):
        rest = [(entries[j][1], cell) for j in range(i + 1, len(entries)) if (cell := cells[i][j])]
        ahead = [f"{other} ({more(cell)})" for other, cell in rest if cell.verdict == "better"]
        tied = [other for other, cell in rest if cell.verdict == "tied"]
        unknown = [other for other, cell in rest if cell.verdict == "unknown"]
        parts = [f"is ahead of {listed(ahead)}" if ahead else "", f"cannot be told from {listed(tied)}" if tied else ""]
        parts.append(f"cannot be compared with {listed(unknown)} yet" if unknown else "")
        if said := " and ".join(part for part in parts if part):
            found.append(f"{title} {said}.")
    return found


def more(cell: Cell) -> str:
    assert cell.ratio is not None, "it is better"
    return f"which needs {explanations.format_percent(cell.ratio.cm - 1)} more compute to get as far"


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- scores ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreRow:
    name: str
    cells: tuple[Score | None, ...]


def score_rows(runs: Sequence[Run], scores: Iterable[Score]) -> list[ScoreRow]:
    """Return a row for each number that some run has: held-out text first, then the lm-eval tasks."""
    found = {(score.name, score.run_id): score for score in scores}
    names = sorted({name for name, _ in found}, key=lambda name: ("/" in name, name))
    return [ScoreRow(name, tuple(found.get((name, run.pk)) for run in runs)) for name in names]


# --- Markdown --------------------------------------------------------------------------------------------------------


def markdown(
    runs: Sequence[Run], differ: Sequence[Difference], found: Pairs | None, rows: Sequence[ScoreRow], address: str
) -> str:
    """Return the comparison for a pull request or a chat."""
    heads = [f"run {run.pk}" for run in runs]
    tasks = [row for row in rows if "/" in row.name]
    facts = [
        ["", *heads],
        ["entry", *(run.entry.title for run in runs)],
        ["bits per byte", *(plus_minus(run.bits_per_byte, run.bits_per_byte_stderr) for run in runs)],
        ["training FLOPs", *(formatting.power(run.train_flops) if run.train_flops else "" for run in runs)],
        *([task.name, *(plus_minus(of.value, of.stderr) if of else "" for of in task.cells)] for task in tasks),
        *([row.name, *row.values] for row in differ),
    ]
    said = [f"- {sentence}" for sentence in found.sentences] if found else []
    scale = [f"Multipliers over all runs that count, at {found.scale}:", *said, ""] if found else []
    return "\n".join([f"### Compared: {', '.join(heads)}", "", *scale, *table(facts), "", address, ""])


def plus_minus(value: float | None, stderr: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if stderr is None else f"{value:.4f} ± {stderr:.4f}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    return [lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]


def escaped(text: str) -> str:
    """A title is its author's: nothing of it makes a column, a link or a mention."""
    for mark in "\\|[]<>@`*_":
        text = text.replace(mark, f"\\{mark}" if mark != "@" else "@\u200b")
    return " ".join(text.split())
