"""Scoring of one model: probes in one process, the full pass in another, then the checks."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
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

REPEATED_WINDOWS = 4  # windows that the full pass requests again at its end


@dataclass(frozen=True)
class ModelScore:
    """The score of a model that passed all checks."""

    bits: BitsPerByte
    checks: dict[str, Any]
    documents: list[tuple[float, int]]  # of each document: bits that the model needs, bytes


def score_model(
    probe_client: ModelProcessClient,
    full_client: ModelProcessClient,
    texts: Sequence[EncodedDocument],
    byte_lengths: NDArray[np.int64],
    end_of_text: int,
    progress: ProgressCallback,
    rng: random.Random | None = None,
) -> ModelScore:
    """Score `texts` with two freshly started processes. Raise a `ModelMisbehaviorError` for a misbehaving model."""
    rng = rng or random.SystemRandom()
    length = full_client.run.sequence_length
    windows = [window for i, text in enumerate(texts) for window in cut_windows(i, text.tokens, end_of_text, length)]
    probe_client.wait_until_loaded()
    progress("checking", 0)
    observations = cheat_detection.run_probes(probe_client, windows, end_of_text, rng)
    probe_client.close()
    comparison = cheat_detection.ProbeComparison(observations, windows)
    full_client.wait_until_loaded()
    nats = run_full_pass(full_client, windows, end_of_text, comparison, progress, rng)
    comparison.raise_if_cheating()
    documents = concatenate_by_document(windows, nats, len(texts))
    lengths = [byte_lengths[text.tokens] for text in texts]
    sizes = [text.size for text in texts]
    bits = [float(part.sum()) / math.log(2) for part in documents]
    score = BitsPerByte.from_documents(documents, sizes, lengths)
    return ModelScore(score, comparison.report(), list(zip(bits, sizes, strict=True)))


def run_full_pass(
    client: ModelProcessClient,
    windows: Sequence[TextWindow],
    padding: int,
    comparison: cheat_detection.ProbeComparison,
    progress: ProgressCallback,
    rng: random.Random,
) -> list[NDArray[np.float64]]:
    """Return the nats of every target, by window. Each window is requested once, and a few again at the end."""
    nats: list[NDArray[np.float64]] = [np.empty(0)] * len(windows)
    repeated = rng.sample(range(len(windows)), min(REPEATED_WINDOWS, len(windows)))
    first: list[cheat_detection.Observation] = []
    done, total = 0, sum(map(len, windows))
    lengths = [round_row_length(len(window), client.run.sequence_length) for window in windows]
    for batch in batch_rows(lengths, client.layout.positions, rng):
        logits = client.get_logits(pad_rows([windows[i].inputs for i in batch], lengths[batch[0]], padding))
        for i, reply in zip(batch, logits, strict=True):
            rows = reply[: len(windows[i])]
            nats[i] = -score_targets(rows, windows[i].targets).log_probabilities
            comparison.compare_window(i, rows)
            if i in repeated:
                first += cheat_detection.observe_random_rows("order", i, rows, rng)
            done += len(rows)
        progress("scoring", done / total)
    for i in repeated:
        logits = client.get_logits(pad_rows([windows[i].inputs], lengths[i], padding))
        for observation in first:
            if observation.window == i:
                comparison.compare_row(observation, logits[0, observation.position])
    client.check_unchanged()
    return nats


def concatenate_by_document(
    windows: Sequence[TextWindow], nats: Sequence[NDArray[np.float64]], documents: int
) -> list[NDArray[np.float64]]:
    parts: list[list[NDArray[np.float64]]] = [[] for _ in range(documents)]
    for window, part in zip(windows, nats, strict=True):
        parts[window.document].append(part)
    return [np.concatenate(part) for part in parts]
