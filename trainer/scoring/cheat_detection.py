"""Cheat detection: probes sent to a fresh model process first, whose logits the full pass must reproduce.

A row of the full pass contains the tokens that follow, so a model could simply read them. Four checks, in this order:

1. **Prefix.** At secret random cuts the model sees only what comes before. Within a document the cuts ascend, so an
   earlier probe never shows what follows in a later one. k cuts miss a model that cheats on a share p of the
   positions with probability (1-p)^k.
2. **Causality.** Whole windows in which everything after a secret position is replaced.
3. **Order.** Whole windows again, in another order and in other batches; and, after the full pass, its own first
   windows once more.
4. **Memory.** Whole windows in which one early token is replaced. An honest model is hardly affected. A model that
   has memorized the text, or recognizes it by a fingerprint, predicts much worse.

The full pass runs in another process. It must agree with these observations row by row.

Not covered: a model that looks up what follows the last few words (`bundle_scan` searches the entry's files for copies
of the text; its weights were trained on machines without the held-out text).
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

PREFIX_PROBES = 64  # a cheat on 5 % of positions is caught with probability 0.96, on 10 % with 0.999
CAUSALITY_PROBES = 16
ORDER_PROBES = 16
MEMORY_PROBES = 24
ROWS_PER_PROBE = 8  # positions compared in each order and memory probe
# A model has memorized the text if one wrong early token costs it at least all of these:
MEMORIZED_SHARE = 0.5  # of its later loss
MEMORIZED_NATS = 0.25  # per token
MEMORIZED_STDERRS = 5.0
TOLERANCE = 2e-3
"""Largest difference of a log-probability, over the whole vocabulary, in nats. The same float32 model computes rows of
another length or batch with other kernels, which round differently: 3e-7 to 2e-6 was measured for the architectures of
this repository, also with weights ten times too large; bfloat16 inside a model may reach 1e-3. What a model could gain
by staying below this is caught by `MAX_MEAN_GAIN`."""

MAX_MEAN_GAIN = 1e-4
"""Largest mean gain, in nats, of the targets' log-probabilities in the full pass over those where the model could not
see them. Rounding is unbiased: over 80 rows its mean was below 1e-7. The limit is less than a tenth of the difference
between two seeds of one model (0.0013 nats)."""

MIN_GAIN_ROWS = 32  # fewest rows for a meaningful mean gain
SHARES = (0.01, 0.05, 0.1, 0.5)  # shares of positions for which the probability of catching a cheat is reported


@dataclass(frozen=True)
class Observation:
    """The model's prediction at one position, at one time."""

    check: str
    """`prefix` (the last row of a prefix), `interior` (an earlier row of it), `causality` (the last row before the
    replaced text), `before` (an earlier row of that), `order`, `memory` (a later row, after a replaced token)."""
    window: int
    position: int
    row: NDArray[np.float32]  # log-probabilities of the whole vocabulary


@dataclass(frozen=True)
class Probe:
    """A row of tokens, and the positions of its logits to observe."""

    window: int
    tokens: NDArray[np.int64]
    observed: tuple[tuple[str, int], ...]  # (check, position)


def run_probes(
    client: ModelProcessClient, windows: Sequence[TextWindow], padding: int, rng: random.Random
) -> list[Observation]:
    """Send all probes to a fresh process and return what the full pass will be compared with."""
    observations = []
    for probe in build_prefix_probes(windows, rng):
        observations += observe_probes(client, [probe], len(probe.tokens), padding)
    vocabulary = client.run.vocabulary_size
    probes = [
        *build_causality_probes(windows, vocabulary, rng),
        *build_order_probes(windows, rng),
        *build_memory_probes(windows, vocabulary, padding, rng),
    ]
    lengths = [round_row_length(len(probe.tokens), client.run.sequence_length) for probe in probes]
    for group in batch_rows(lengths, client.layout.positions, rng):
        for batch in random_batches(group, rng):
            observations += observe_probes(client, [probes[i] for i in batch], lengths[group[0]], padding)
    client.check_unchanged()
    return observations


def observe_probes(
    client: ModelProcessClient, probes: Sequence[Probe], length: int, padding: int
) -> Iterator[Observation]:
    """Send probes as one batch and yield their observations."""
    logits = client.get_logits(pad_rows([probe.tokens for probe in probes], length, padding))
    for probe, reply in zip(probes, logits, strict=True):
        rows = log_softmax(reply[[position for _, position in probe.observed]])
        for (check, position), row in zip(probe.observed, rows, strict=True):
            yield Observation(check, probe.window, position, row.astype(np.float32))


def random_batches(group: Sequence[int], rng: random.Random) -> Iterator[Sequence[int]]:
    """Yield the group in parts of 1 to 8."""
    start = 0
    while start < len(group):
        end = start + rng.randint(1, 8)
        yield group[start:end]
        start = end


def observe_random_rows(
    check: str, window: int, logits: NDArray[np.float32], rng: random.Random
) -> Iterator[Observation]:
    """Yield some rows of a window's logits [length, vocabulary], to compare with a later reply."""
    for position in rng.sample(range(len(logits)), min(ROWS_PER_PROBE, len(logits))):
        yield Observation(check, window, position, log_softmax(logits[[position]])[0].astype(np.float32))


def build_prefix_probes(windows: Sequence[TextWindow], rng: random.Random) -> list[Probe]:
    """Return prefixes cut uniformly over all positions, in random order across documents, ascending within each."""
    ends = np.cumsum([len(window) for window in windows])
    drawn = rng.sample(range(int(ends[-1])), min(PREFIX_PROBES, int(ends[-1])))
    cuts = [(int(np.searchsorted(ends, place, side="right")), place) for place in drawn]
    ascending: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for window, place in sorted(cuts, reverse=True):
        ascending[windows[window].document].append((window, place))
    probes = []
    for window, _ in cuts:  # documents in the order drawn, each with its next cut
        index, place = ascending[windows[window].document].pop()
        position = place - int(ends[index]) + len(windows[index])
        observed = [("prefix", position)]
        if position:
            observed.append(("interior", rng.randrange(position)))
        probes.append(Probe(index, windows[index].inputs[: position + 1], tuple(observed)))
    return probes


def build_causality_probes(windows: Sequence[TextWindow], vocabulary: int, rng: random.Random) -> Iterator[Probe]:
    """Yield windows replaced after a secret position: half with real text, half with random tokens."""
    eligible = [i for i, window in enumerate(windows) if len(window) > 1]
    for number, index in enumerate(rng.sample(eligible, min(CAUSALITY_PROBES, len(eligible)))):
        window = windows[index]
        position = rng.randrange(len(window) - 1)
        tokens = window.inputs.copy()
        tail = len(window) - position - 1
        other = windows[rng.choice(eligible)].inputs[::-1] if number % 2 else np.empty(0, np.int64)
        noise = np.array([rng.randrange(vocabulary) for _ in range(tail)], np.int64)
        tokens[position + 1 :] = np.concatenate([other[:tail], noise])[:tail]
        observed = [("causality", position)]
        observed += [("before", rng.randrange(position)) for _ in range(2) if position]
        yield Probe(index, tokens, tuple(observed))


def build_order_probes(windows: Sequence[TextWindow], rng: random.Random) -> Iterator[Probe]:
    """Yield whole windows, as in the full pass."""
    for index in rng.sample(range(len(windows)), min(ORDER_PROBES, len(windows))):
        length = len(windows[index])
        positions = rng.sample(range(length), min(ROWS_PER_PROBE, length))
        yield Probe(index, windows[index].inputs, tuple(("order", position) for position in positions))


def build_memory_probes(
    windows: Sequence[TextWindow], vocabulary: int, end_of_text: int, rng: random.Random
) -> Iterator[Probe]:
    """Yield windows with one token of the first quarter replaced, observed in the second half."""
    eligible = [i for i, window in enumerate(windows) if len(window) >= 2 * ROWS_PER_PROBE]
    for index in rng.sample(eligible, min(MEMORY_PROBES, len(eligible))):
        length = len(windows[index])
        tokens = windows[index].inputs.copy()
        place = rng.randrange(1, length // 4)
        others = [token for token in rng.sample(range(vocabulary), 3) if token not in (tokens[place], end_of_text)]
        tokens[place] = others[0]
        positions = rng.sample(range(length // 2, length), ROWS_PER_PROBE)
        yield Probe(index, tokens, tuple(("memory", position) for position in positions))


class ProbeComparison:
    """Compares the logits of the full pass with the probes' observations."""

    def __init__(self, observations: Sequence[Observation], windows: Sequence[TextWindow]) -> None:
        self._windows = windows
        self._observations: dict[int, list[Observation]] = defaultdict(list)
        for observation in observations:
            self._observations[observation.window].append(observation)
        self._differences: dict[str, list[float]] = defaultdict(list)
        self._gains: list[float] = []
        self._memory_losses: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """By window: loss in the full pass, loss after a replaced token."""

    def compare_window(self, window: int, logits: NDArray[np.float32]) -> None:
        """`logits`: [length, vocabulary] of this window in the full pass."""
        for observation in self._observations.get(window, ()):
            self.compare_row(observation, logits[observation.position])

    def compare_row(self, observation: Observation, logits: NDArray[np.float32]) -> None:
        row = log_softmax(logits[None])[0]
        target = self._windows[observation.window].targets[observation.position]
        if observation.check == "memory":
            self._memory_losses[observation.window].append((-float(row[target]), -float(observation.row[target])))
            return
        self._differences[observation.check].append(float(np.abs(row - observation.row).max()))
        if observation.check in ("prefix", "causality"):
            self._gains.append(float(row[target] - observation.row[target]))

    def max_difference(self, *checks: str) -> float:
        return max((value for check in checks for value in self._differences[check]), default=0.0)

    def mean_gain(self) -> float:
        return float(np.mean(self._gains)) if self._gains else 0.0

    def memory_loss(self) -> tuple[float, float]:
        """Return the mean nats per token that one wrong early token costs, and its standard error over windows."""
        costs = [np.mean([changed - full for full, changed in pairs]) for pairs in self._memory_losses.values()]
        if len(costs) < 2:
            return 0.0, 0.0
        return float(np.mean(costs)), float(np.std(costs, ddof=1) / np.sqrt(len(costs)))

    def has_memorized(self) -> bool:
        cost, error = self.memory_loss()
        losses = [changed for pairs in self._memory_losses.values() for _, changed in pairs]
        mean = float(np.mean(losses)) if losses else 0.0
        return cost > max(MEMORIZED_NATS, MEMORIZED_SHARE * mean, MEMORIZED_STDERRS * error)

    def raise_if_cheating(self) -> None:
        """Raise the most specific error. The order matters: a random model fails every check."""
        failed = {check for check in self._differences if self.max_difference(check) > TOLERANCE}
        detail = ", ".join(f"{check} {self.max_difference(check):.2g}" for check in sorted(failed))
        if "order" in failed:
            raise misbehavior.NonDeterministicError(detail)
        if "before" in failed:  # the replaced text affects all positions: not causal
            raise misbehavior.NonCausalError(detail)
        if "interior" in failed:  # only the row's length differs, not its text
            raise misbehavior.ProbeDetectedError(detail)
        if "causality" in failed or "prefix" in failed:
            raise misbehavior.NonCausalError(detail)
        if len(self._gains) >= MIN_GAIN_ROWS and self.mean_gain() > MAX_MEAN_GAIN:
            raise misbehavior.NonCausalError(f"mean gain {self.mean_gain():.2g} nats")
        if self.has_memorized():
            raise misbehavior.MemorizedError(f"{self.memory_loss()[0]:.2g} nats a token")

    def report(self) -> dict[str, Any]:
        """Return the checks for the JSON of `dailytrain score`."""
        cuts = len(self._differences["prefix"])
        cost, error = self.memory_loss()
        return {
            "prefix": {
                "cuts": cuts,
                "max_difference": self.max_difference("prefix", "interior"),
                "mean_gain": self.mean_gain(),
                "tolerance": TOLERANCE,
                "catch_probability": {str(share): 1 - (1 - share) ** cuts for share in SHARES},
            },
            "causality": {
                "changes": len(self._differences["causality"]),
                "max_difference": self.max_difference("causality", "before"),
                "tolerance": TOLERANCE,
            },
            "order": {
                "rows": len(self._differences["order"]),
                "max_difference": self.max_difference("order"),
                "tolerance": TOLERANCE,
            },
            "memory": {"windows": len(self._memory_losses), "mean_loss": cost, "stderr": error},
        }
