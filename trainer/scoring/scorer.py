"""One model, scored: the probe process first, then the full pass in a process of its own, then the verdict."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.scoring import cheat_detection
from trainer.scoring.bits_per_byte import BitsPerByte
from trainer.scoring.heldout_text import EncodedDocument
from trainer.scoring.logits import score_targets
from trainer.scoring.model_client import ModelProcessClient
from trainer.scoring.progress import ProgressCallback
from trainer.scoring.windows import TextWindow, batch_rows, cut_windows, pad_rows, round_row_length

REPEATED_WINDOWS = 4
"""Windows that the full pass's own process is asked again at its end."""


@dataclass(frozen=True)
class ModelScore:
    """The outcome for an honest model."""

    bits: BitsPerByte
    checks: dict[str, Any]
    documents: list[tuple[float, int]]
    """Of each document: bits that the model needs, bytes."""


def score_model(
    probe: ModelProcessClient,
    full: ModelProcessClient,
    texts: Sequence[EncodedDocument],
    byte_lengths: NDArray[np.int64],
    end_of_text: int,
    progress: ProgressCallback,
    dice: random.Random | None = None,
) -> ModelScore:
    """Score `texts`. Both doors are open and fresh; raises `verdicts.Misbehaved` where the model does."""
    dice = dice or random.SystemRandom()
    length = full.run.sequence_length
    windows = [window for i, text in enumerate(texts) for window in cut_windows(i, text.tokens, end_of_text, length)]
    probe.wait()
    progress("checking", 0)
    sightings = cheat_detection.run_probes(probe, windows, end_of_text, dice)
    probe.close()
    comparison = cheat_detection.ProbeComparison(sightings, windows)
    full.wait()
    nats = run_full_pass(full, windows, end_of_text, comparison, progress, dice)
    comparison.verdict()
    documents = [np.concatenate(parts) for parts in group_by_document(windows, nats, len(texts))]
    lengths = [byte_lengths[text.tokens] for text in texts]
    sizes = [text.size for text in texts]
    needed = [float(part.sum()) / math.log(2) for part in documents]
    return ModelScore(
        BitsPerByte.of(documents, sizes, lengths), comparison.report(), list(zip(needed, sizes, strict=True))
    )


def run_full_pass(
    door: ModelProcessClient,
    windows: Sequence[TextWindow],
    filler: int,
    comparison: cheat_detection.ProbeComparison,
    progress: ProgressCallback,
    dice: random.Random,
) -> list[NDArray[np.float64]]:
    """Nats of every target, by window. Every window is asked once; a few are asked again at the end."""
    nats: list[NDArray[np.float64]] = [np.empty(0)] * len(windows)
    repeated = dice.sample(range(len(windows)), min(REPEATED_WINDOWS, len(windows)))
    first: list[cheat_detection.Observation] = []
    done, total = 0, sum(map(len, windows))
    sizes = [round_row_length(len(window), door.run.sequence_length) for window in windows]
    for group in batch_rows(sizes, door.space.positions, dice):
        logits = door.ask(pad_rows([windows[i].inputs for i in group], sizes[group[0]], filler))
        for i, answer in zip(group, logits, strict=True):
            rows = answer[: len(windows[i])]
            nats[i] = -score_targets(rows, windows[i].targets).log_probabilities
            comparison.look(i, rows)
            if i in repeated:
                first += cheat_detection.observe_random_rows("order", i, rows, dice)
            done += len(rows)
        progress("scoring", done / total)
    for i in repeated:
        logits = door.ask(pad_rows([windows[i].inputs], sizes[i], filler))
        for sighting in first:
            if sighting.window == i:
                comparison.compare(sighting, logits[0, sighting.position])
    door.check_watched()
    return nats


def group_by_document(
    windows: Sequence[TextWindow], nats: Sequence[NDArray[np.float64]], documents: int
) -> Iterator[list[NDArray[np.float64]]]:
    """Each document's windows, in order."""
    parts: list[list[NDArray[np.float64]]] = [[] for _ in range(documents)]
    for window, part in zip(windows, nats, strict=True):
        parts[window.document].append(part)
    yield from parts
