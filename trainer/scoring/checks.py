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

from trainer.scoring import verdicts
from trainer.scoring.door import Door
from trainer.scoring.logits import log_softmax
from trainer.scoring.windows import Window, batches, padded, rounded

CUTS = 64
"""Prefix questions: a cheat on 5 % of positions is caught with probability 0.96, on 10 % with 0.999."""

CHANGES = 16
"""Windows with another text after a secret position."""

SLIPS = 24
"""Windows with another token near their beginning."""

RECITED = 0.5
"""Share of its loss that a model may lose on an average window by one early token being the right one,"""

RECITED_NATS = 0.25
"""and nats a token, at least,"""

RECITED_SPREAD = 5.0
"""and how many standard errors that must be from nothing."""

REPEATS = 16
"""Windows asked again in another order and other company."""

ROWS = 8
"""Positions compared in each of those."""

TOLERANCE = 2e-3
"""Largest difference of a log-probability, over the whole vocabulary, in nats. The same float32 model answers rows of
another length or batch through other kernels, which round differently: 3e-7 to 2e-6 was measured for the architectures
of this repository, also with weights ten times too large; bfloat16 inside a model may come to 1e-3. What a model could
gain by staying below this is caught by `BIAS`."""

BIAS = 1e-4
"""Largest mean gain, in nats, of the true tokens' log-probabilities in the full pass over those where the model could
not see them. Rounding has no direction: over 80 rows its mean was below 1e-7. It is less than a tenth of what two seeds
of one model differ by (0.0013 nats)."""

BIAS_ROWS = 32
"""Fewest rows whose mean says something."""

SHARES = (0.01, 0.05, 0.1, 0.5)
"""Shares of positions for which the probability of catching a cheat is printed."""


@dataclass(frozen=True)
class Sighting:
    """What the model said of one position, at one time."""

    check: str
    """`prefix` (the last row of a prefix), `interior` (an earlier row of it), `causality` (the last row before another
    text), `before` (an earlier row of that), `order`, `memory` (a later row, after a changed token)."""
    window: int
    position: int
    row: NDArray[np.float32]
    """Log-probabilities of the whole vocabulary."""


@dataclass(frozen=True)
class Question:
    """A row of tokens, and which positions of the answer are kept."""

    window: int
    tokens: NDArray[np.int64]
    kept: tuple[tuple[str, int], ...]
    """(check, position)."""


def probe(door: Door, windows: Sequence[Window], filler: int, dice: random.Random) -> list[Sighting]:
    """Ask a fresh process everything that the full pass will be compared with."""
    found = []
    for question in prefixes(windows, dice):
        found += ask(door, [question], len(question.tokens), filler)
    vocabulary = door.run.vocabulary_size
    rest = [*changed(windows, vocabulary, dice), *again(windows, dice), *slipped(windows, vocabulary, filler, dice)]
    sizes = [rounded(len(question.tokens), door.run.sequence_length) for question in rest]
    for group in batches(sizes, door.space.positions, dice):
        for company in companies(group, dice):
            found += ask(door, [rest[i] for i in company], sizes[group[0]], filler)
    door.check_watched()
    return found


def ask(door: Door, questions: Sequence[Question], size: int, filler: int) -> Iterator[Sighting]:
    """One question to the door, several rows."""
    logits = door.ask(padded([question.tokens for question in questions], size, filler))
    for question, answer in zip(questions, logits, strict=True):
        rows = log_softmax(answer[[position for _, position in question.kept]])
        for (check, position), row in zip(question.kept, rows, strict=True):
            yield Sighting(check, question.window, position, row.astype(np.float32))


def companies(group: Sequence[int], dice: random.Random) -> Iterator[Sequence[int]]:
    """The group in parts of random size."""
    start = 0
    while start < len(group):
        end = start + dice.randint(1, 8)
        yield group[start:end]
        start = end


def sightings(check: str, window: int, logits: NDArray[np.float32], dice: random.Random) -> Iterator[Sighting]:
    """Some rows of a window's answer, [length, vocabulary], to compare with a later one."""
    for position in dice.sample(range(len(logits)), min(ROWS, len(logits))):
        yield Sighting(check, window, position, log_softmax(logits[[position]])[0].astype(np.float32))


def prefixes(windows: Sequence[Window], dice: random.Random) -> list[Question]:
    """Cuts drawn evenly over all positions, in random order across documents, ascending within each."""
    ends = np.cumsum([len(window) for window in windows])
    drawn = dice.sample(range(int(ends[-1])), min(CUTS, int(ends[-1])))
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
        questions.append(Question(index, windows[index].inputs[: position + 1], tuple(kept)))
    return questions


def changed(windows: Sequence[Window], vocabulary: int, dice: random.Random) -> Iterator[Question]:
    """Windows that go on as another text after a secret position: half with a real text, half with random tokens."""
    long = [i for i, window in enumerate(windows) if len(window) > 1]
    for number, index in enumerate(dice.sample(long, min(CHANGES, len(long)))):
        window = windows[index]
        position = dice.randrange(len(window) - 1)
        tokens = window.inputs.copy()
        tail = len(window) - position - 1
        other = windows[dice.choice(long)].inputs[::-1] if number % 2 else np.empty(0, np.int64)
        noise = np.array([dice.randrange(vocabulary) for _ in range(tail)], np.int64)
        tokens[position + 1 :] = np.concatenate([other[:tail], noise])[:tail]
        kept = [("causality", position)]
        kept += [("before", dice.randrange(position)) for _ in range(2) if position]
        yield Question(index, tokens, tuple(kept))


def again(windows: Sequence[Window], dice: random.Random) -> Iterator[Question]:
    """Whole windows, as in the full pass."""
    for index in dice.sample(range(len(windows)), min(REPEATS, len(windows))):
        length = len(windows[index])
        kept = dice.sample(range(length), min(ROWS, length))
        yield Question(index, windows[index].inputs, tuple(("order", position) for position in kept))


def slipped(windows: Sequence[Window], vocabulary: int, end_of_text: int, dice: random.Random) -> Iterator[Question]:
    """Windows with one token of their first quarter changed; looked at in their second half."""
    long = [i for i, window in enumerate(windows) if len(window) >= 2 * ROWS]
    for index in dice.sample(long, min(SLIPS, len(long))):
        length = len(windows[index])
        tokens = windows[index].inputs.copy()
        place = dice.randrange(1, length // 4)
        others = [token for token in dice.sample(range(vocabulary), 3) if token not in (tokens[place], end_of_text)]
        tokens[place] = others[0]
        kept = dice.sample(range(length // 2, length), ROWS)
        yield Question(index, tokens, tuple(("memory", position) for position in kept))


class Comparison:
    """Compares the full pass with the sightings, as it goes along."""

    def __init__(self, sightings: Sequence[Sighting], windows: Sequence[Window]) -> None:
        self._windows = windows
        self._sightings: dict[int, list[Sighting]] = defaultdict(list)
        for sighting in sightings:
            self._sightings[sighting.window].append(sighting)
        self._differences: dict[str, list[float]] = defaultdict(list)
        self._gains: list[float] = []
        self._known: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def look(self, window: int, logits: NDArray[np.float32]) -> None:
        """`logits`: [length, vocabulary] of this window in the full pass."""
        for sighting in self._sightings.get(window, ()):
            self.compare(sighting, logits[sighting.position])

    def compare(self, sighting: Sighting, logits: NDArray[np.float32]) -> None:
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
        slipped = float(np.mean([slip for pairs in self._known.values() for _, slip in pairs])) if self._known else 0.0
        return worth > max(RECITED_NATS, RECITED * slipped, RECITED_SPREAD * error)

    def verdict(self) -> None:
        """Raises what fits best; the order of the questions matters, for a random model fails all of them."""
        wrong = {check for check in self._differences if self.largest(check) > TOLERANCE}
        detail = ", ".join(f"{check} {self.largest(check):.2g}" for check in sorted(wrong))
        if "order" in wrong:
            raise verdicts.Unsteady(detail)
        if "before" in wrong:  # the last text matters everywhere: it is simply not causal
            raise verdicts.LooksAhead(detail)
        if "interior" in wrong:  # only where the text goes on, though that is no other text
            raise verdicts.TellsProbesApart(detail)
        if "causality" in wrong or "prefix" in wrong:
            raise verdicts.LooksAhead(detail)
        if len(self._gains) >= BIAS_ROWS and self.mean_gain() > BIAS:
            raise verdicts.LooksAhead(f"mean gain {self.mean_gain():.2g} nats")
        if self.recites():
            raise verdicts.Recites(f"{self.recited()[0]:.2g} nats a token")

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
