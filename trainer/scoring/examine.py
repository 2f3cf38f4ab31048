"""One model, scored: the probe process first, then the full pass in a process of its own, then the verdict."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.scoring import checks
from trainer.scoring.bits import Bits
from trainer.scoring.door import Door
from trainer.scoring.heldout import Text
from trainer.scoring.logits import predictions
from trainer.scoring.progress import Progress
from trainer.scoring.windows import Window, batches, cut, padded, rounded

REPEATED = 4
"""Windows that the full pass's own process is asked again at its end."""


@dataclass(frozen=True)
class Examination:
    """The outcome for an honest model."""

    bits: Bits
    checks: dict[str, Any]
    documents: list[tuple[float, int]]
    """Of each document: bits that the model needs, bytes."""


def examine(
    probe: Door,
    full: Door,
    texts: Sequence[Text],
    byte_lengths: NDArray[np.int64],
    end_of_text: int,
    progress: Progress,
    dice: random.Random | None = None,
) -> Examination:
    """Score `texts`. Both doors are open and fresh; raises `verdicts.Misbehaved` where the model does."""
    dice = dice or random.SystemRandom()
    length = full.run.sequence_length
    windows = [window for i, text in enumerate(texts) for window in cut(i, text.tokens, end_of_text, length)]
    probe.wait()
    progress("checking", 0)
    sightings = checks.probe(probe, windows, end_of_text, dice)
    probe.close()
    comparison = checks.Comparison(sightings, windows)
    full.wait()
    nats = full_pass(full, windows, end_of_text, comparison, progress, dice)
    comparison.verdict()
    documents = [np.concatenate(parts) for parts in by_document(windows, nats, len(texts))]
    lengths = [byte_lengths[text.tokens] for text in texts]
    sizes = [text.size for text in texts]
    needed = [float(part.sum()) / math.log(2) for part in documents]
    return Examination(Bits.of(documents, sizes, lengths), comparison.report(), list(zip(needed, sizes, strict=True)))


def full_pass(
    door: Door,
    windows: Sequence[Window],
    filler: int,
    comparison: checks.Comparison,
    progress: Progress,
    dice: random.Random,
) -> list[NDArray[np.float64]]:
    """Nats of every target, by window. Every window is asked once; a few are asked again at the end."""
    nats: list[NDArray[np.float64]] = [np.empty(0)] * len(windows)
    repeated = dice.sample(range(len(windows)), min(REPEATED, len(windows)))
    first: list[checks.Sighting] = []
    done, total = 0, sum(map(len, windows))
    sizes = [rounded(len(window), door.run.sequence_length) for window in windows]
    for group in batches(sizes, door.space.positions, dice):
        logits = door.ask(padded([windows[i].inputs for i in group], sizes[group[0]], filler))
        for i, answer in zip(group, logits, strict=True):
            rows = answer[: len(windows[i])]
            nats[i] = -predictions(rows, windows[i].targets).log_probabilities
            comparison.look(i, rows)
            if i in repeated:
                first += checks.sightings("order", i, rows, dice)
            done += len(rows)
        progress("scoring", done / total)
    for i in repeated:
        logits = door.ask(padded([windows[i].inputs], sizes[i], filler))
        for sighting in first:
            if sighting.window == i:
                comparison.compare(sighting, logits[0, sighting.position])
    door.check_watched()
    return nats


def by_document(
    windows: Sequence[Window], nats: Sequence[NDArray[np.float64]], documents: int
) -> Iterator[list[NDArray[np.float64]]]:
    """Each document's windows, in order."""
    parts: list[list[NDArray[np.float64]]] = [[] for _ in range(documents)]
    for window, part in zip(windows, nats, strict=True):
        parts[window.document].append(part)
    yield from parts
