"""Which judged runs count, and as what: the plain records that multipliers are computed from.

Pure: facts of runs in, records out. `leaderboard.rankings.standings` compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.urls import reverse
from typing_extensions import TypedDict

from leaderboard.models import Run
from leaderboard.models.entries import web_address
from trainer.scoring.multiplier import Axis

NOT_RELIED_ON = {
    Run.Trust.PROVISIONAL: "Nothing vouches for its node yet.",
    Run.Trust.DISPUTED: "It is disputed.",
}
"""Trust of runs that are shown and not compared, and why."""
CROWNED = "A record: its confirmation runs alone are clearly over the baseline and the record before."
"""What is written of an entry whose confirmation made it the record. It stays, whoever takes the record later."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A judged run, as far as it is compared."""

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
    flops_void: str = ""
    """The same of its FLOPs."""
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
    """Trained on, as the training process says."""
    average: float | None = None
    """Over the track's lm-eval tasks, each counted from chance (0) to all correct (1)."""
    confirmation: str = ""
    """What came of its entry's confirmation runs."""

    @property
    def page(self) -> str:
        return reverse("run", args=[self.run])

    @property
    def public_repository(self) -> str:
        """As an entry's: empty for a folder of the server."""
        return self.repository if web_address(self.repository) else ""


COLUMNS: dict[str, str] = {
    # field of Judged: column of Run
    **{name: name for name in ("purpose", "seed", "budget", "bits_per_byte", "seconds_void", "node_class", "trust")},
    **{name: name for name in ("flops_void", "parameters", "finished_at")},
    "run": "pk",
    "entry": "entry_id",
    "stderr": "bits_per_byte_stderr",
    "tokens": "tokens",
    "average": "overall__value",
    "flops": "train_flops",
    "seconds": "train_seconds",
    **{name: f"entry__{name}" for name in ("title", "architecture", "author", "kind", "sha", "repository")},
    "confirmation": "entry__confirmation",
}


class RecordDict(TypedDict):
    """What `dailytrain multiplier` reads, and where it comes from."""

    entry: str
    seed: int
    flops: float | None
    seconds: float | None
    bits_per_byte: float
    run: int
    title: str
    budget: str
    flops_void: str
    seconds_void: str


def name_of(entry: int) -> str:
    """Return what downloads call an entry: unlike a title it is unique, and safe in a command line."""
    return f"entry-{entry}"


def record(run: Judged) -> RecordDict:
    return {
        "entry": name_of(run.entry),
        "seed": run.seed,
        "flops": run.flops,
        "seconds": run.seconds,
        "bits_per_byte": run.bits_per_byte,
        "run": run.run,
        "title": run.title,
        "budget": run.budget,
        "flops_void": run.flops_void,
        "seconds_void": run.seconds_void,
    }


def compute(run: Judged, axis: Axis) -> float | None:
    return run.flops if axis == "flops" else run.seconds


def choose(
    judged: Iterable[Judged], baseline: int | None, confirmations: int
) -> tuple[list[Judged], list[tuple[Judged, str]]]:
    """Return the runs that count, by entry, budget and seed, and those that do not, with the reason.

    An entry with all its confirmation runs is judged by those alone, since the first runs are why it was chosen.
    """
    judged = sorted(judged, key=lambda run: (run.entry, run.budget, run.seed, run.run))
    confirming = Counter(run.entry for run in judged if is_confirmation(run) and run.entry != baseline)
    counted, left_out = [], []
    for run in judged:
        if run.purpose == Run.Purpose.MONTHLY:
            left_out.append((run, "It ran on the monthly train, with more than the track's budget."))
        elif run.trust in NOT_RELIED_ON:
            left_out.append((run, NOT_RELIED_ON[Run.Trust(run.trust)]))
        elif confirming[run.entry] >= confirmations and not is_confirmation(run):
            left_out.append((run, "Its entry is judged by its confirmation runs alone."))
        else:
            flops = None if run.flops_void else run.flops or None
            counted.append(replace(run, flops=flops, seconds=None if run.seconds_void else run.seconds or None))
    return counted, left_out


def is_confirmation(run: Judged) -> bool:
    return run.purpose == Run.Purpose.CONFIRMATION


def on_one_clock(runs: Sequence[Judged], baseline: int | None) -> list[Judged]:
    """Void the seconds of runs on another class of machine than most of the baseline's: they are not comparable."""
    classes = Counter(run.node_class for run in runs if run.entry == baseline and run.seconds)
    if not classes:
        return list(runs)
    clock = classes.most_common(1)[0][0]
    reason = f"It ran on another class of machine than the ladder ({clock or 'unknown'})."
    return [
        run if run.seconds is None or run.node_class == clock else replace(run, seconds=None, seconds_void=reason)
        for run in runs
    ]
