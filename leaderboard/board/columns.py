"""The board's columns: what each shows of a row, and the field that it sorts by. One item per column in `COLUMNS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Case, Expression, F, Value, When
from django.db.models.functions import Lower, NullIf

from leaderboard import formatting
from leaderboard.models import Run, Standing, StandingsTable


class Cell(NamedTuple):
    text: str
    aside: str = ""
    """Small print after the text."""


@dataclass(frozen=True, kw_only=True)
class Column:
    label: str
    explains: str
    cell: Callable[[Standing, StandingsTable], Cell]
    order: Expression | F
    """Rows without a value come last in both directions."""
    is_descending: bool = False
    """Whether the first click on its head sorts large values first."""
    is_default: bool = True
    is_number: bool = True


def number_cell(field: str, write: Callable[[float], str]) -> Callable[[Standing, StandingsTable], Cell]:
    return lambda row, _: Cell(formatting.format_or_missing(write, getattr(row, field)))


def format_difference(row: Standing, table: StandingsTable) -> str:
    """Return a row's bits per byte less those of the baseline's runs with the whole budget; empty without these."""
    baseline = next((rung["mean"] for rung in table.chart_data.get("rungs", ()) if rung["part"] == 1), None)
    difference = "" if baseline is None or row.is_baseline else f"{row.bits_per_byte - baseline:+.4f}"
    return difference.replace("-", "−")


def parameters_cell(row: Standing, _: StandingsTable) -> Cell:
    stored = "" if row.stored_bytes is None else formatting.binary(row.stored_bytes)
    return Cell(formatting.format_or_missing(formatting.compact, row.parameters), stored)


def run_count_cell(row: Standing, table: StandingsTable) -> Cell:
    lacks_runs = row.run_count < table.track.seeds and not (table.track.stops_early and not row.is_undecided)
    return Cell(f"{row.run_count}", f"of {table.track.seeds}" if lacks_runs else "")


COLUMNS: dict[str, Column] = {
    "author": Column(
        label="Author", explains="Who proposed it.", cell=lambda row, _: Cell(row.entry.author or formatting.MISSING),
        order=NullIf(Lower("entry__author"), Value("")), is_default=False, is_number=False,
    ),
    "bits": Column(
        label="Bits per byte", explains="On text that no model has seen, the mean over runs; lower is better. "
        "Below: the difference from the baseline’s runs.",
        cell=lambda row, table: Cell(f"{row.bits_per_byte:.4f}", format_difference(row, table)),
        order=F("bits_per_byte"),
    ),
    "average": Column(
        label="lm-eval", explains="Average over the track's lm-eval tasks: 0 is chance, 100 % all correct.",
        cell=number_cell("benchmark_average", formatting.points), order=F("benchmark_average"), is_descending=True,
    ),
    "parameters": Column(
        label="Parameters", explains="Numbers in the checkpoint: trained parameters, tables of embeddings among them, "
        "and stored buffers. Below: the size of all stored tensors.", cell=parameters_cell, order=F("parameters"),
    ),
    "constants": Column(
        label="Constants", explains="Size of the fixed tensors in the graph.",
        cell=number_cell("constant_bytes", formatting.binary), order=F("constant_bytes"), is_default=False,
    ),
    "source": Column(
        label="Source", explains="Compressed size of the entry's source beyond main's.",
        cell=number_cell("source_bytes", formatting.binary), order=F("source_bytes"), is_default=False,
    ),
    "scoring": Column(
        label="Scoring FLOPs", explains="Of the forward pass, per token of held-out text.",
        cell=number_cell("scoring_flops", formatting.power), order=F("scoring_flops"), is_default=False,
    ),
    "flops": Column(
        label="FLOPs", explains="Of the training, counted by the scorer; the mean over runs.",
        cell=number_cell("train_flops", formatting.power), order=F("train_flops"),
    ),
    "time": Column(
        label="Time", explains="Training seconds that were charged; the mean over runs.",
        cell=number_cell("train_seconds", formatting.duration), order=F("train_seconds"), is_default=False,
    ),
    "tokens": Column(
        label="Tokens", explains="That it was trained on.", cell=number_cell("tokens", formatting.compact),
        order=F("tokens"), is_descending=True, is_default=False,
    ),
    "speed": Column(
        label="Tokens/s", explains="Tokens over training seconds, on the node that trained it.",
        cell=number_cell("tokens_per_second", formatting.compact), order=F("tokens_per_second"), is_descending=True,
    ),
    "runs": Column(
        label="Runs", explains="With the track's whole budget, that count.", cell=run_count_cell,
        order=F("run_count"), is_descending=True, is_default=False,
    ),
    "trust": Column(
        label="Trust", explains="How far the result can be relied on.",
        cell=lambda row, _: Cell(row.get_trust_display()),
        order=Case(*(When(trust=trust, then=number) for number, trust in enumerate(Run.Trust.values))),
        is_descending=True, is_number=False,
    ),
    "date": Column(
        label="Date", explains="When its latest run was scored.",
        cell=lambda row, _: Cell(f"{row.finished_at:%Y-%m-%d}" if row.finished_at else formatting.MISSING),
        order=F("finished_at"), is_descending=True,
    ),
}  # fmt: skip
DEFAULT_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.is_default)
