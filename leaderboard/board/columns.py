"""The board's columns: what each shows of a row, and what it sorts by. One entry a column in `COLUMNS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from leaderboard import formatting
from leaderboard.models import Run
from leaderboard.rankings.standings import Row, Standings
from leaderboard.templatetags.multipliers import badge
from leaderboard.templatetags.page import moment


class Cell(NamedTuple):
    """What stands in a row under a column; `aside` is written smaller."""

    text: str
    aside: str = ""


Key = float | str | None


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the board."""

    label: str
    explains: str
    cell: Callable[[Row, Standings], Cell]
    key: Callable[[Row], Key]
    """What it sorts by; rows that have none come last, whichever way."""
    best_is_high: bool = False
    """Whether the first click on its head puts large values on top."""
    usual: bool = True
    """Whether it is shown to somebody who chose nothing."""
    is_number: bool = True


def written(value: float | None, write: Callable[[float], str]) -> str:
    return formatting.MISSING if value is None else write(value)


def bits(row: Row, _: Standings) -> Cell:
    stderr = written(row.stderr, lambda value: f"{value:.4f}")
    return Cell(f"{row.bits_per_byte:.4f}", f"±{formatting.SPACE}{stderr}")


def average(row: Row, _: Standings) -> Cell:
    return Cell(written(row.average, formatting.points))


def parameters(row: Row, _: Standings) -> Cell:
    return Cell(written(row.latest.parameters, formatting.compact))


def compute(row: Row, _: Standings) -> Cell:
    return Cell(written(row.flops, formatting.power))


def tokens(row: Row, _: Standings) -> Cell:
    return Cell(written(row.tokens, formatting.compact))


def speed(row: Row, _: Standings) -> Cell:
    return Cell(written(row.tokens_per_second, formatting.compact))


def time(row: Row, _: Standings) -> Cell:
    return Cell(written(row.seconds, formatting.duration))


def runs(row: Row, standings: Standings) -> Cell:
    return Cell(f"{len(row.runs)}", f"of {standings.seeds}" if len(row.runs) < standings.seeds else "")


COLUMNS: dict[str, Column] = {
    "author": Column(
        label="Author", explains="Who proposed it.", cell=lambda row, _: Cell(row.latest.author or formatting.MISSING),
        key=lambda row: row.latest.author.casefold() or None, usual=False, is_number=False,
    ),
    "bits": Column(
        label="Bits per byte", explains="On text that no model has seen, the mean over runs; lower is better. "
        "± is the standard error over documents.", cell=bits, key=lambda row: row.bits_per_byte,
    ),
    "average": Column(
        label="lm-eval", explains="Average over the track's lm-eval tasks: 0 is chance, 100 % all correct.",
        cell=average, key=lambda row: row.average, best_is_high=True,
    ),
    "parameters": Column(
        label="Parameters", explains="Of the model, tables of embeddings among them.", cell=parameters,
        key=lambda row: row.latest.parameters,
    ),
    "flops": Column(
        label="FLOPs", explains="Of the training, counted by the scorer; the mean over runs.", cell=compute,
        key=lambda row: row.flops,
    ),
    "time": Column(
        label="Time", explains="Training seconds that were charged; the mean over runs.", cell=time,
        key=lambda row: row.seconds, usual=False,
    ),
    "tokens": Column(
        label="Tokens", explains="That it was trained on.", cell=tokens, key=lambda row: row.tokens,
        best_is_high=True, usual=False,
    ),
    "speed": Column(
        label="Tokens/s", explains="Tokens over training seconds, on the node that trained it.", cell=speed,
        key=lambda row: row.tokens_per_second, best_is_high=True,
    ),
    "runs": Column(
        label="Runs", explains="With the track's whole budget, that count.", cell=runs,
        key=lambda row: len(row.runs), best_is_high=True, usual=False,
    ),
    "trust": Column(
        label="Trust", explains="How far the result can be relied on.", cell=lambda row, _: Cell(badge(row.trust)),
        key=lambda row: list(Run.Trust).index(row.trust), best_is_high=True, is_number=False,
    ),
    "date": Column(
        label="Date", explains="When its latest run was judged.",
        cell=lambda row, _: Cell(moment(row.latest.finished_at, "day")),
        key=lambda row: at.timestamp() if (at := row.latest.finished_at) else None, best_is_high=True,
    ),
}  # fmt: skip
"""In the order of the table."""
