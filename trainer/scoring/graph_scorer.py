"""Score a traced architecture: one process of ours computes its evaluation graph; nothing of an entry runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from trainer.graph.model import GraphModel, build_model
from trainer.graph.schema import TracedArchitecture
from trainer.scoring.bits_per_byte import BitsPerByte
from trainer.scoring.heldout_text import EncodedDocument
from trainer.scoring.look_ahead import DRAWS, Correction, draw_positions, estimate_correction, estimate_reference
from trainer.scoring.misbehavior import NonFiniteLogitsError
from trainer.scoring.progress import ProgressCallback
from trainer.scoring.windows import TextWindow, cut_windows, pad_rows

LOGITS_PER_BATCH = {"cpu": 2**24, "cuda": 2**28}  # logits of one pass over several rows
REPEATED_DRAWS = 256  # drawn positions that are computed with a second replacement of the later tokens
UNTRAINED_WINDOWS = 64  # windows on which the untrained model is scored

Losses = NDArray[np.float64]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class GraphScore:
    """The score of a graph."""

    bits: BitsPerByte  # corrected for later tokens, with the correction's error in its standard error
    bits_per_byte_uncorrected: float
    correction: Correction  # nats a token
    untrained_bits_per_byte: float  # of the initial parameters, on some of the windows
    unigram_bits_per_byte: float  # of the text's own token frequencies, on the same windows
    documents: list[tuple[float, int]]  # of each document: bits with its share of the correction, bytes
    losses: Losses  # of every token, in the order of the documents: the reference for later entries


class GraphScorer:
    """Computes logits and losses of a graph model on one device, in float32."""

    def __init__(self, model: GraphModel, device: torch.device) -> None:
        self.device = device
        self.model = model.to(device).eval()
        self.sequence_length = model.traced_length
        with torch.inference_mode():
            features = self.model.features(torch.zeros(1, 1, dtype=torch.int64, device=device))
            self.vocabulary_size = self.model.logits(features).size(-1)

    @property
    def max_tokens(self) -> int:
        """Tokens of the largest pass: at least one row."""
        return max(self.sequence_length, LOGITS_PER_BATCH[self.device.type] // self.vocabulary_size)

    def check_unchanged(self) -> None:
        """Do nothing: logits are copies in this process."""

    @torch.inference_mode()
    def get_logits(self, tokens: Tokens) -> NDArray[np.float32]:
        """Return logits `[rows, length, vocabulary]` for token ids `[rows, length]`."""
        logits = self.model(torch.from_numpy(tokens).to(self.device)).float()
        if not logits.isfinite().all():
            raise NonFiniteLogitsError
        result: NDArray[np.float32] = logits.cpu().numpy()
        return result

    @torch.inference_mode()
    def compute_losses(self, inputs: Tokens, targets: Tokens) -> Losses:
        """Return the nats of each target, `[rows, length]`."""
        rows, length = inputs.shape
        logits = self.model(torch.from_numpy(inputs).to(self.device))
        return self.compute_nats(logits, targets.ravel()).reshape(rows, length)

    @torch.inference_mode()
    def compute_losses_at(self, inputs: Tokens, positions: Tokens, targets: Tokens) -> Losses:
        """Return the nats of one target in each row, `[rows]`."""
        features = self.model.features(torch.from_numpy(inputs).to(self.device))
        picked = features[torch.arange(len(inputs)), torch.from_numpy(positions).to(self.device)]
        return self.compute_nats(self.model.logits(picked[:, None]), targets)

    def compute_nats(self, logits: Tensor, targets: Tokens) -> Losses:
        flat = logits.flatten(0, -2).float()
        nats = F.cross_entropy(flat, torch.from_numpy(targets).to(self.device), reduction="none")
        if not nats.isfinite().all():
            raise NonFiniteLogitsError
        result: Losses = nats.double().cpu().numpy()
        return result

    def iterate_batches(self, count: int) -> Iterator[slice]:
        """Yield slices of rows that fit into one pass."""
        rows = max(1, self.max_tokens // self.sequence_length)
        for start in range(0, count, rows):
            yield slice(start, min(start + rows, count))


@dataclass(frozen=True)
class WindowRows:
    """The windows of all documents as padded rows."""

    windows: Sequence[TextWindow]
    inputs: Tokens  # [windows, T]
    targets: Tokens  # [windows, T], 0 where there is no target
    mask: NDArray[np.bool_]  # [windows, T], where there is a target

    @classmethod
    def build(cls, texts: Sequence[EncodedDocument], end_of_text: int, length: int) -> WindowRows:
        windows = [w for i, text in enumerate(texts) for w in cut_windows(i, text.tokens, end_of_text, length)]
        sizes = np.array([len(window) for window in windows])
        return cls(
            windows,
            pad_rows([window.inputs for window in windows], length, end_of_text),
            pad_rows([window.targets for window in windows], length, 0),
            np.arange(length) < sizes[:, None],
        )


def load_trained_model(traced: TracedArchitecture, checkpoint: Path) -> GraphModel:
    """Return the model with the weights of a checkpoint's folder."""
    model = build_model(traced)
    weights = load_file(checkpoint / "model.safetensors")
    model.load_state_dict(weights, strict=False)
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    if missing:
        raise ValueError(f"the checkpoint has no {missing[0]}")
    return model


def score_graph(
    scorer: GraphScorer,
    untrained: GraphScorer,
    texts: Sequence[EncodedDocument],
    byte_lengths: NDArray[np.int64],
    end_of_text: int,
    progress: ProgressCallback,
    reference: Losses | None = None,
    rng: np.random.Generator | None = None,
) -> GraphScore:
    """Score texts; `reference`: another model's losses of the same tokens, from an earlier `GraphScore`."""
    rng = rng or np.random.default_rng()
    rows = WindowRows.build(texts, end_of_text, scorer.sequence_length)
    losses = compute_all_losses(scorer, rows, progress)
    flat, tokens = losses[rows.mask], rows.targets[rows.mask]
    if reference is None or len(reference) != len(flat):
        reference = estimate_reference(tokens, scorer.vocabulary_size)
    correction = correct_for_later_tokens(scorer, rows, losses, reference, progress, rng)
    chosen = rng.permutation(len(rows.windows))[:UNTRAINED_WINDOWS]
    sizes = [text.size for text in texts]
    parts = np.split(flat, np.cumsum([len(text.tokens) for text in texts])[:-1])
    plain = BitsPerByte.from_documents(parts, sizes, [byte_lengths[text.tokens] for text in texts])
    return GraphScore(
        bits=add_correction(plain, correction),
        bits_per_byte_uncorrected=plain.bits_per_byte,
        correction=correction,
        untrained_bits_per_byte=score_windows(untrained, rows, chosen, byte_lengths),
        unigram_bits_per_byte=score_unigram(scorer, rows, chosen, byte_lengths),
        documents=[
            (float(part.sum() + correction.nats * len(part)) / math.log(2), size)
            for part, size in zip(parts, sizes, strict=True)
        ],
        losses=flat,
    )


def compute_all_losses(scorer: GraphScorer, rows: WindowRows, progress: ProgressCallback) -> Losses:
    """Return the nats of every target, `[windows, T]`; what stands where there is no target means nothing."""
    losses = np.zeros(rows.inputs.shape)
    for part in scorer.iterate_batches(len(rows.inputs)):
        losses[part] = scorer.compute_losses(rows.inputs[part], rows.targets[part])
        progress("scoring", part.stop / len(rows.inputs))
    return losses


def correct_for_later_tokens(
    scorer: GraphScorer,
    rows: WindowRows,
    losses: Losses,
    reference: Losses,
    progress: ProgressCallback,
    rng: np.random.Generator,
) -> Correction:
    """Return what has to be added to the mean loss (`trainer.scoring.look_ahead`)."""
    full_reference = np.zeros(rows.inputs.shape)
    full_reference[rows.mask] = reference
    # The last target of a window has no later token.
    has_later = rows.mask.copy()
    has_later[:, :-1] &= rows.mask[:, 1:]
    has_later[:, -1] = False
    places = np.argwhere(has_later)
    if not len(places):
        return Correction(0.0, 0.0, 0.0)
    candidates = losses[has_later]
    sample = draw_positions(candidates, full_reference[has_later], DRAWS, rng)
    drawn = places[sample.positions]
    alone = compute_alone(scorer, rows, drawn, progress, rng)
    again = compute_alone(scorer, rows, drawn[:REPEATED_DRAWS], progress, rng)
    found = estimate_correction(sample, alone - candidates[sample.positions], again - alone[:REPEATED_DRAWS])
    share = len(places) / int(rows.mask.sum())
    return Correction(found.nats * share, found.stderr * share, found.rounding * share)


def compute_alone(
    scorer: GraphScorer,
    rows: WindowRows,
    places: NDArray[np.int64],
    progress: ProgressCallback,
    rng: np.random.Generator,
) -> Losses:
    """Return the losses at `places [n, 2]` (window, position) with every later token replaced by other text."""
    found = np.zeros(len(places))
    stream = rows.inputs[rows.mask]
    for part in scorer.iterate_batches(len(places)):
        windows, positions = places[part].T
        starts = rng.integers(0, len(stream), size=len(windows))
        length = rows.inputs.shape[1]
        other = stream[(starts[:, None] + np.arange(length)) % len(stream)]
        is_later = np.arange(length) > positions[:, None]
        inputs = np.where(is_later, other, rows.inputs[windows])
        found[part] = scorer.compute_losses_at(inputs, positions, rows.targets[windows, positions])
        progress("checking for later tokens", part.stop / len(places))
    return found


def add_correction(plain: BitsPerByte, correction: Correction) -> BitsPerByte:
    """Return the score with the correction, and both errors in its standard error."""
    scale = plain.tokens / math.log(2) / plain.bytes
    error = None if plain.stderr is None else math.hypot(plain.stderr, correction.stderr * scale)
    return replace(
        plain,
        bits_per_byte=plain.bits_per_byte + correction.nats * scale,
        stderr=error,
        nats_per_token=plain.nats_per_token + correction.nats,
    )


def score_windows(
    scorer: GraphScorer, rows: WindowRows, chosen: NDArray[np.int64], byte_lengths: NDArray[np.int64]
) -> float:
    """Return bits per byte of some windows."""
    total = 0.0
    for part in scorer.iterate_batches(len(chosen)):
        losses = scorer.compute_losses(rows.inputs[chosen[part]], rows.targets[chosen[part]])
        total += float(losses[rows.mask[chosen[part]]].sum())
    return total / math.log(2) / float(byte_lengths[rows.targets[chosen][rows.mask[chosen]]].sum())


def score_unigram(
    scorer: GraphScorer, rows: WindowRows, chosen: NDArray[np.int64], byte_lengths: NDArray[np.int64]
) -> float:
    """Return bits per byte of the same windows for a model that knows the text's token frequencies."""
    tokens = rows.targets[rows.mask]
    places = np.cumsum(rows.mask.sum(axis=1)) - rows.mask.sum(axis=1)
    nats = estimate_reference(tokens, scorer.vocabulary_size)
    picked = np.concatenate([np.arange(places[w], places[w] + rows.mask[w].sum()) for w in chosen])
    return float(nats[picked].sum() / math.log(2) / byte_lengths[tokens[picked]].sum())


def describe_checks(score: GraphScore) -> dict[str, Any]:
    """Return what stands under `checks` in the JSON of `dailytrain score`."""
    return {
        "look_ahead": {
            "nats_per_token": score.correction.nats,
            "stderr": score.correction.stderr,
            "rounding": score.correction.rounding,
            "is_beyond_rounding": score.correction.is_beyond_rounding,
            "bits_per_byte_uncorrected": score.bits_per_byte_uncorrected,
        },
        "untrained": {
            "bits_per_byte": score.untrained_bits_per_byte,
            "unigram_bits_per_byte": score.unigram_bits_per_byte,
        },
    }
