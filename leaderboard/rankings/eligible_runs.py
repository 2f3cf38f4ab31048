"""Which scored runs count, and the plain records that multipliers are computed from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.urls import reverse
from typing_extensions import TypedDict

from leaderboard.models import Run
from leaderboard.models.entries import web_address
from leaderboard.models.standings import get_entry_name
from trainer.scoring.multiplier import Axis

EXCLUDED_TRUST = {Run.Trust.PROVISIONAL: "Nothing vouches for its node yet.", Run.Trust.DISPUTED: "It is disputed."}
"""Trust of runs that are shown and not compared, and why."""
NO_GRAPH = "It was not trained from a graph, and this track compares graphs only."
PASSES_DIFFER = "A run of its entry predicts otherwise by its training graph than by its evaluation graph."
RULED_OUT = "Its entry does not rank, by ruling {}."
READS_AHEAD = "A run of its entry reads later tokens: the score's correction for them is beyond rounding."


@dataclass(frozen=True, kw_only=True)
class ScoredRun:
    run: int
    entry: int
    purpose: str
    seed: int
    budget: str
    bits_per_byte: float
    stderr: float | None
    flops: float | None
    seconds: float | None
    seconds_void: str
    """Why its seconds do not count; empty where they do."""
    node_class: str
    trust: str
    parameters: int | None
    finished_at: datetime | None
    title: str
    architecture: str
    author: str
    kind: str
    sha: str
    repository: str
    tokens: int = 0
    look_ahead_stderr: float | None = None
    """Of the correction for later tokens in `bits_per_byte`."""
    reads_ahead: bool | None = None
    """Whether that correction is beyond rounding."""
    passes_differ: bool = False
    """Whether its training graph predicts otherwise than the scored one."""
    average: float | None = None
    """Over the track's lm-eval tasks, from 0 (chance) to 1 (all correct)."""
    broke_record: bool = False
    """Whether its entry's confirmation runs broke the record in its season, now or once."""
    ruling: int | None = None
    """By which its entry does not rank."""
    is_traced: bool = False
    """Whether its track compares graphs."""
    graph: str | None = None
    """Hash of the graph that was trained; the next three are of this graph."""
    stored_bytes: int | None = None
    constant_bytes: int | None = None
    scoring_flops: float | None = None
    """FLOPs per scored token."""
    source_bytes: int | None = None
    """Compressed source of the entry beyond main's."""

    @property
    def lacks_graph(self) -> bool:
        return self.is_traced and not self.graph

    @property
    def page(self) -> str:
        return reverse("run", args=[self.run])

    @property
    def public_repository(self) -> str:
        return self.repository if web_address(self.repository) else ""


RUN_COLUMNS: dict[str, str] = {
    # field of ScoredRun: column of Run
    **{name: name for name in ("purpose", "seed", "budget", "bits_per_byte", "seconds_void", "node_class", "trust")},
    **{name: name for name in ("parameters", "finished_at")},
    "run": "pk",
    "entry": "entry_id",
    "stderr": "bits_per_byte_stderr",
    "tokens": "tokens",
    "look_ahead_stderr": "checks__look_ahead__stderr_bits_per_byte",
    "reads_ahead": "checks__look_ahead__is_beyond_rounding",
    "passes_differ": "passes_differ",
    "average": "overall__value",
    "flops": "train_flops",
    "seconds": "train_seconds",
    **{name: f"entry__{name}" for name in ("title", "architecture", "author", "kind", "sha", "repository")},
    "broke_record": "broke_record",
    "ruling": "entry__ruling",
    "is_traced": "track__is_traced",
    "graph": "graph__hash",
    **{name: f"graph__summary__{name}" for name in ("stored_bytes", "constant_bytes")},
    "scoring_flops": "graph__summary__scoring_flops_per_token",
    "source_bytes": "entry__source_bytes",
}


class RecordDict(TypedDict):
    """The fields that `dailytrain multiplier` reads."""

    entry: str
    seed: int
    flops: float | None
    seconds: float | None
    bits_per_byte: float
    look_ahead_stderr: float | None
    run: int
    title: str
    budget: str
    seconds_void: str


def to_record(run: ScoredRun) -> RecordDict:
    return {
        "entry": get_entry_name(run.entry),
        "seed": run.seed,
        "flops": run.flops,
        "seconds": run.seconds,
        "bits_per_byte": run.bits_per_byte,
        "look_ahead_stderr": run.look_ahead_stderr,
        "run": run.run,
        "title": run.title,
        "budget": run.budget,
        "seconds_void": run.seconds_void,
    }


def get_compute(run: ScoredRun, axis: Axis) -> float | None:
    return run.flops if axis == "flops" else run.seconds


def select_eligible_runs(
    runs: Iterable[ScoredRun], baseline: int | None, confirmations: int
) -> tuple[list[ScoredRun], list[tuple[ScoredRun, str]]]:
    """Return the runs that count, by entry, budget and seed, and those that do not, with the reason.

    An entry with all its confirmation runs is judged by those alone, since the first runs are why it was chosen. One
    that reads later tokens in any run has no place: it could choose the noise of its score. Nor has one that is scored
    by another model than the one that was trained.
    """
    runs = sorted(runs, key=lambda run: (run.entry, run.budget, run.seed, run.run))
    confirming = Counter(run.entry for run in runs if is_confirmation(run) and run.entry != baseline)
    others = [run for run in runs if run.entry != baseline]
    reading_ahead = {run.entry for run in others if run.reads_ahead}
    differing = {run.entry for run in others if run.passes_differ}
    counted, left_out = [], []
    for run in runs:
        if run.purpose == Run.Purpose.MONTHLY:
            left_out.append((run, "It ran on the monthly train, with more than the track's budget."))
        elif run.ruling:
            left_out.append((run, RULED_OUT.format(run.ruling)))
        elif run.lacks_graph:
            left_out.append((run, NO_GRAPH))
        elif run.entry in reading_ahead:
            left_out.append((run, READS_AHEAD))
        elif run.entry in differing:
            left_out.append((run, PASSES_DIFFER))
        elif run.trust in EXCLUDED_TRUST:
            left_out.append((run, EXCLUDED_TRUST[Run.Trust(run.trust)]))
        elif confirming[run.entry] >= confirmations and not is_confirmation(run):
            left_out.append((run, "Its entry is judged by its confirmation runs alone."))
        else:
            seconds = None if run.seconds_void else run.seconds or None
            counted.append(replace(run, flops=run.flops or None, seconds=seconds))
    return counted, left_out


def is_confirmation(run: ScoredRun) -> bool:
    return run.purpose == Run.Purpose.CONFIRMATION


def void_other_node_classes(runs: Sequence[ScoredRun], baseline: int | None) -> list[ScoredRun]:
    """Void the seconds of runs on another node class than most of the baseline's: they are not comparable."""
    classes = Counter(run.node_class for run in runs if run.entry == baseline and run.seconds)
    if not classes:
        return list(runs)
    clock = classes.most_common(1)[0][0]
    reason = f"It ran on another class of machine than the ladder ({clock or 'unknown'})."
    return [
        run if run.seconds is None or run.node_class == clock else replace(run, seconds=None, seconds_void=reason)
        for run in runs
    ]
