"""Does the model cheat? Questions put to a fresh process first, whose answers the full pass must repeat.

A row of the full pass contains the tokens that follow, so a model could simply read them. Therefore, in this order:

1. **Prefix.** At secret random cuts the model sees only what comes before. Within a document the cuts ascend, so an
   earlier question never shows what follows in a later one. A cheat on a share p of positions is missed by k cuts with
   probability (1-p)^k.
2. **Causality.** Whole windows in which everything after a secret position is another text.
3. **Order.** Whole windows again, in another order and other company; and, after the full pass, its own first windows
   once more.
4. **Memory.** Whole windows in which one early token is another. An honest model hardly minds; one that knows the text
   by its fingerprint, or by heart, loses what it knew.

The full pass runs in another process. It must agree, row for row, with what was said here.

Not covered: a model that looks up what follows the last few words (`bundle_scan` looks for copies of the text in the
entry's files; its weights were trained where the held-out text is not).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.scoring import misbehavior
from trainer.scoring.logits import log_softmax
from trainer.scoring.model_client import ModelProcessClient
from trainer.scoring.windows import TextWindow, batch_rows, pad_rows, round_row_length

PREFIX_PROBES = 64
"""Prefix questions: a cheat on 5 % of positions is caught with probability 0.96, on 10 % with 0.999."""

CAUSALITY_PROBES = 16
"""Windows with another text after a secret position."""

MEMORY_PROBES = 24
"""Windows with another token near their beginning."""

MEMORIZED_SHARE = 0.5
"""Share of its loss that a model may lose on an average window by one early token being the right one,"""

MEMORIZED_NATS = 0.25
"""and nats a token, at least,"""

MEMORIZED_STDERRS = 5.0
"""and how many standard errors that must be from nothing."""

ORDER_PROBES = 16
"""Windows asked again in another order and other company."""

ROWS_PER_PROBE = 8
"""Positions compared in each of those."""

TOLERANCE = 2e-3
"""Largest difference of a log-probability, over the whole vocabulary, in nats. The same float32 model answers rows of
another length or batch through other kernels, which round differently: 3e-7 to 2e-6 was measured for the architectures
of this repository, also with weights ten times too large; bfloat16 inside a model may come to 1e-3. What a model could
gain by staying below this is caught by `BIAS`."""

MAX_MEAN_GAIN = 1e-4
"""Largest mean gain, in nats, of the true tokens' log-probabilities in the full pass over those where the model could
not see them. Rounding has no direction: over 80 rows its mean was below 1e-7. It is less than a tenth of what two seeds
of one model differ by (0.0013 nats)."""

MIN_GAIN_ROWS = 32
"""Fewest rows whose mean says something."""

SHARES = (0.01, 0.05, 0.1, 0.5)
"""Shares of positions for which the probability of catching a cheat is printed."""


@dataclass(frozen=True)
class Observation:
    """What the model said of one position, at one time."""

    check: str
    """`prefix` (the last row of a prefix), `interior` (an earlier row of it), `causality` (the last row before another
    text), `before` (an earlier row of that), `order`, `memory` (a later row, after a changed token)."""
    window: int
    position: int
    row: NDArray[np.float32]
    """Log-probabilities of the whole vocabulary."""


@dataclass(frozen=True)
class Probe:
    """A row of tokens, and which positions of the answer are kept."""

    window: int
    tokens: NDArray[np.int64]
    kept: tuple[tuple[str, int], ...]
    """(check, position)."""


def run_probes(
    door: ModelProcessClient, windows: Sequence[TextWindow], filler: int, dice: random.Random
) -> list[Observation]:
    """Ask a fresh process everything that the full pass will be compared with."""
    found = []
    for question in build_prefix_probes(windows, dice):
        found += observe_probes(door, [question], len(question.tokens), filler)
    vocabulary = door.run.vocabulary_size
    rest = [
        *build_causality_probes(windows, vocabulary, dice),
        *build_order_probes(windows, dice),
        *build_memory_probes(windows, vocabulary, filler, dice),
    ]
    sizes = [round_row_length(len(question.tokens), door.run.sequence_length) for question in rest]
    for group in batch_rows(sizes, door.space.positions, dice):
        for company in random_batches(group, dice):
            found += observe_probes(door, [rest[i] for i in company], sizes[group[0]], filler)
    door.check_watched()
    return found


def observe_probes(
    door: ModelProcessClient, questions: Sequence[Probe], size: int, filler: int
) -> Iterator[Observation]:
    """One question to the door, several rows."""
    logits = door.ask(pad_rows([question.tokens for question in questions], size, filler))
    for question, answer in zip(questions, logits, strict=True):
        rows = log_softmax(answer[[position for _, position in question.kept]])
        for (check, position), row in zip(question.kept, rows, strict=True):
            yield Observation(check, question.window, position, row.astype(np.float32))


def random_batches(group: Sequence[int], dice: random.Random) -> Iterator[Sequence[int]]:
    """The group in parts of random size."""
    start = 0
    while start < len(group):
        end = start + dice.randint(1, 8)
        yield group[start:end]
        start = end


def observe_random_rows(
    check: str, window: int, logits: NDArray[np.float32], dice: random.Random
) -> Iterator[Observation]:
    """Some rows of a window's answer, [length, vocabulary], to compare with a later one."""
    for position in dice.sample(range(len(logits)), min(ROWS_PER_PROBE, len(logits))):
        yield Observation(check, window, position, log_softmax(logits[[position]])[0].astype(np.float32))


def build_prefix_probes(windows: Sequence[TextWindow], dice: random.Random) -> list[Probe]:
    """Cuts drawn evenly over all positions, in random order across documents, ascending within each."""
    ends = np.cumsum([len(window) for window in windows])
    drawn = dice.sample(range(int(ends[-1])), min(PREFIX_PROBES, int(ends[-1])))
    cuts = [(int(np.searchsorted(ends, place, side="right")), place) for place in drawn]
    ascending: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for window, place in sorted(cuts, reverse=True):
        ascending[windows[window].document].append((window, place))
    questions = []
    for window, _ in cuts:  # in the order drawn, each document's next
        index, place = ascending[windows[window].document].pop()
        position = place - int(ends[index]) + len(windows[index])
        kept = [("prefix", position)]
        if position:
            kept.append(("interior", dice.randrange(position)))
        questions.append(Probe(index, windows[index].inputs[: position + 1], tuple(kept)))
    return questions


def build_causality_probes(windows: Sequence[TextWindow], vocabulary: int, dice: random.Random) -> Iterator[Probe]:
    """Windows that go on as another text after a secret position: half with a real text, half with random tokens."""
    long = [i for i, window in enumerate(windows) if len(window) > 1]
    for number, index in enumerate(dice.sample(long, min(CAUSALITY_PROBES, len(long)))):
        window = windows[index]
        position = dice.randrange(len(window) - 1)
        tokens = window.inputs.copy()
        tail = len(window) - position - 1
        other = windows[dice.choice(long)].inputs[::-1] if number % 2 else np.empty(0, np.int64)
        noise = np.array([dice.randrange(vocabulary) for _ in range(tail)], np.int64)
        tokens[position + 1 :] = np.concatenate([other[:tail], noise])[:tail]
        kept = [("causality", position)]
        kept += [("before", dice.randrange(position)) for _ in range(2) if position]
        yield Probe(index, tokens, tuple(kept))


def build_order_probes(windows: Sequence[TextWindow], dice: random.Random) -> Iterator[Probe]:
    """Whole windows, as in the full pass."""
    for index in dice.sample(range(len(windows)), min(ORDER_PROBES, len(windows))):
        length = len(windows[index])
        kept = dice.sample(range(length), min(ROWS_PER_PROBE, length))
        yield Probe(index, windows[index].inputs, tuple(("order", position) for position in kept))


def build_memory_probes(
    windows: Sequence[TextWindow], vocabulary: int, end_of_text: int, dice: random.Random
) -> Iterator[Probe]:
    """Windows with one token of their first quarter changed; looked at in their second half."""
    long = [i for i, window in enumerate(windows) if len(window) >= 2 * ROWS_PER_PROBE]
    for index in dice.sample(long, min(MEMORY_PROBES, len(long))):
        length = len(windows[index])
        tokens = windows[index].inputs.copy()
        place = dice.randrange(1, length // 4)
        others = [token for token in dice.sample(range(vocabulary), 3) if token not in (tokens[place], end_of_text)]
        tokens[place] = others[0]
        kept = dice.sample(range(length // 2, length), ROWS_PER_PROBE)
        yield Probe(index, tokens, tuple(("memory", position) for position in kept))


class ProbeComparison:
    """Compares the full pass with the sightings, as it goes along."""

    def __init__(self, sightings: Sequence[Observation], windows: Sequence[TextWindow]) -> None:
        self._windows = windows
        self._sightings: dict[int, list[Observation]] = defaultdict(list)
        for sighting in sightings:
            self._sightings[sighting.window].append(sighting)
        self._differences: dict[str, list[float]] = defaultdict(list)
        self._gains: list[float] = []
        self._known: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def look(self, window: int, logits: NDArray[np.float32]) -> None:
        """`logits`: [length, vocabulary] of this window in the full pass."""
        for sighting in self._sightings.get(window, ()):
            self.compare(sighting, logits[sighting.position])

    def compare(self, sighting: Observation, logits: NDArray[np.float32]) -> None:
        row = log_softmax(logits[None])[0]
        if sighting.check == "memory":
            target = self._windows[sighting.window].targets[sighting.position]
            self._known[sighting.window].append((-float(row[target]), -float(sighting.row[target])))
            return
        self._differences[sighting.check].append(float(np.abs(row - sighting.row).max()))
        if sighting.check in ("prefix", "causality"):
            target = self._windows[sighting.window].targets[sighting.position]
            self._gains.append(float(row[target] - sighting.row[target]))

    def largest(self, check: str) -> float:
        return max(self._differences[check], default=0.0)

    def mean_gain(self) -> float:
        return float(np.mean(self._gains)) if self._gains else 0.0

    def recited(self) -> tuple[float, float]:
        """(mean nats that one early token is worth to a window's later ones, its standard error over windows)."""
        worth = [np.mean([slip - right for right, slip in pairs]) for pairs in self._known.values()]
        if len(worth) < 2:
            return 0.0, 0.0
        return float(np.mean(worth)), float(np.std(worth, ddof=1) / np.sqrt(len(worth)))

    def recites(self) -> bool:
        worth, error = self.recited()
        changed = float(np.mean([slip for pairs in self._known.values() for _, slip in pairs])) if self._known else 0.0
        return worth > max(MEMORIZED_NATS, MEMORIZED_SHARE * changed, MEMORIZED_STDERRS * error)

    def verdict(self) -> None:
        """Raises what fits best; the order of the questions matters, for a random model fails all of them."""
        wrong = {check for check in self._differences if self.largest(check) > TOLERANCE}
        detail = ", ".join(f"{check} {self.largest(check):.2g}" for check in sorted(wrong))
        if "order" in wrong:
            raise misbehavior.NonDeterministicError(detail)
        if "before" in wrong:  # the last text matters everywhere: it is simply not causal
            raise misbehavior.NonCausalError(detail)
        if "interior" in wrong:  # only where the text goes on, though that is no other text
            raise misbehavior.ProbeDetectedError(detail)
        if "causality" in wrong or "prefix" in wrong:
            raise misbehavior.NonCausalError(detail)
        if len(self._gains) >= MIN_GAIN_ROWS and self.mean_gain() > MAX_MEAN_GAIN:
            raise misbehavior.NonCausalError(f"mean gain {self.mean_gain():.2g} nats")
        if self.recites():
            raise misbehavior.MemorizedError(f"{self.recited()[0]:.2g} nats a token")

    def report(self) -> dict[str, Any]:
        """For the JSON of `dailytrain score`."""
        cuts = len(self._differences["prefix"])
        return {
            "prefix": {
                "cuts": cuts,
                "max_difference": max(self.largest("prefix"), self.largest("interior")),
                "mean_gain": self.mean_gain(),
                "tolerance": TOLERANCE,
                "catch_probability": {str(share): 1 - (1 - share) ** cuts for share in SHARES},
            },
            "causality": {
                "changes": len(self._differences["causality"]),
                "max_difference": max(self.largest("causality"), self.largest("before")),
                "tolerance": TOLERANCE,
            },
            "order": {
                "rows": len(self._differences["order"]),
                "max_difference": self.largest("order"),
                "tolerance": TOLERANCE,
            },
            "memory": {
                "windows": len(self._known),
                "mean_loss": self.recited()[0],
                "stderr": self.recited()[1],
            },
        }
