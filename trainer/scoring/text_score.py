"""Score a model on text: bits per byte, corrected for later tokens that it may have used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.graph.model import GraphModel
from trainer.scoring.bits_per_byte import BitsPerByte
from trainer.scoring.heldout_text import EncodedDocument
from trainer.scoring.look_ahead import Correction, choose_draws, draw_positions, estimate_correction, estimate_reference
from trainer.scoring.model_scorer import Losses, ModelScorer, Tokens, replace_later_tokens
from trainer.scoring.passes import REPEATED_DRAWS, TRAINING_WINDOWS, UNTRAINED_WINDOWS
from trainer.scoring.progress import ProgressCallback
from trainer.scoring.tf32 import ProductPrecision, choose_precision, round_products
from trainer.scoring.training_passes import PassDifference, compare_passes
from trainer.scoring.windows import TextWindow, cut_windows, pad_rows

MIN_UNTRAINED_WINDOWS = 8  # fewest windows whose spread says something
UNTRAINED_STDERRS = 4.0  # by which an untrained model must be better than token frequencies to be refused


@dataclass(frozen=True)
class UntrainedScore:
    """The score of the initial parameters on some of the windows, beside that of the text's own token frequencies."""

    bits_per_byte: float
    unigram_bits_per_byte: float
    is_better: bool  # beyond the sampling error of the windows: it holds knowledge that was not trained


@dataclass(frozen=True)
class TextScore:
    """The score of a model."""

    bits: BitsPerByte  # corrected for later tokens, with the correction's error in its standard error
    bits_per_byte_uncorrected: float
    correction: Correction  # nats a token
    untrained: UntrainedScore
    precision: ProductPrecision
    difference: PassDifference | None  # of both graphs; None: Python was scored
    documents: list[tuple[float, int]]  # of each document: bits with its share of the correction, bytes
    losses: Losses  # of every token, in the order of the documents: the reference for later entries


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


def score_text(
    scorer: ModelScorer,
    untrained: ModelScorer,
    texts: Sequence[EncodedDocument],
    byte_lengths: NDArray[np.int64],
    end_of_text: int,
    progress: ProgressCallback,
    reference: Losses | None = None,
    rng: np.random.Generator | None = None,
) -> TextScore:
    """Score texts; `reference`: another model's losses of the same tokens, from an earlier `TextScore`.

    The untrained model is scored first and unloaded, so that only one model at a time is on the device.
    """
    rng = rng or np.random.default_rng()
    rows = WindowRows.build(texts, end_of_text, scorer.sequence_length)
    before_training = score_untrained(untrained, rows, byte_lengths, rng)
    untrained.unload()
    precision = choose_precision(scorer, rows.inputs, rows.targets, rows.mask, rng)
    count = len(rows.windows)
    # The correction compares a position's loss alone with that in its row, whose products would round differently.
    with round_products("fp32"):
        losses = scorer.score_rows(rows.inputs, rows.targets, lambda done: progress("scoring", done / count)).nats
        flat, tokens = losses[rows.mask], rows.targets[rows.mask]
        if reference is None or len(reference) != len(flat):
            reference = estimate_reference(tokens, scorer.vocabulary_size)
        correction = correct_for_later_tokens(scorer, rows, losses, reference, progress, rng)
        difference = None
        if isinstance(scorer.model, GraphModel):
            chosen = rng.permutation(count)[:TRAINING_WINDOWS]
            own = (rows.inputs[chosen], rows.targets[chosen], rows.mask[chosen], losses[chosen])
            difference = compare_passes(scorer, *own)
    sizes = [text.size for text in texts]
    parts = np.split(flat, np.cumsum([len(text.tokens) for text in texts])[:-1])
    plain = BitsPerByte.from_documents(parts, sizes, [byte_lengths[text.tokens] for text in texts])
    return TextScore(
        bits=add_correction(plain, correction),
        bits_per_byte_uncorrected=plain.bits_per_byte,
        correction=correction,
        untrained=before_training,
        precision=precision,
        difference=difference,
        documents=[
            (float(part.sum() + correction.nats * len(part)) / math.log(2), size)
            for part, size in zip(parts, sizes, strict=True)
        ],
        losses=flat,
    )


def correct_for_later_tokens(
    scorer: ModelScorer,
    rows: WindowRows,
    losses: Losses,
    reference: Losses,
    progress: ProgressCallback,
    rng: np.random.Generator,
) -> Correction:
    """Return what has to be added to the mean loss (`trainer.scoring.look_ahead`)."""
    full_reference = np.zeros(rows.inputs.shape)
    full_reference[rows.mask] = reference
    # The last position of a row has no later token. That of a short window has: padding shows where the document ends.
    has_later = rows.mask.copy()
    has_later[:, -1] = False
    places = np.argwhere(has_later)
    if not len(places):
        return Correction(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    candidates = losses[has_later]
    sample = draw_positions(candidates, full_reference[has_later], choose_draws(len(places)), rng)
    drawn = places[sample.positions]
    alone = score_without_later_tokens(scorer, rows, drawn, progress, rng)
    again = score_without_later_tokens(scorer, rows, drawn[:REPEATED_DRAWS], progress, rng)
    found = estimate_correction(sample, alone - candidates[sample.positions], again - alone[:REPEATED_DRAWS])
    share = len(places) / int(rows.mask.sum())
    return Correction(*(value * share for value in astuple(found)))


def score_without_later_tokens(
    scorer: ModelScorer,
    rows: WindowRows,
    places: NDArray[np.int64],
    progress: ProgressCallback,
    rng: np.random.Generator,
) -> Losses:
    """Return the losses at `places [n, 2]` (window, position) with every later token replaced by other text."""
    windows, positions = places.T
    inputs = replace_later_tokens(rows.inputs[windows], positions, rows.inputs[rows.mask], rng)
    targets = rows.targets[windows, positions]
    return scorer.score_positions(
        inputs, positions, targets, lambda done: progress("checking for later tokens", done / len(places))
    ).nats


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


def score_untrained(
    scorer: ModelScorer, rows: WindowRows, byte_lengths: NDArray[np.int64], rng: np.random.Generator
) -> UntrainedScore:
    """Compare an untrained model with the text's token frequencies on random windows."""
    chosen = rng.permutation(len(rows.windows))[:UNTRAINED_WINDOWS]
    mask, targets = rows.mask[chosen], rows.targets[chosen]
    unigram = np.zeros(rows.mask.shape)
    unigram[rows.mask] = estimate_reference(rows.targets[rows.mask], scorer.vocabulary_size)
    nats = scorer.score_rows(rows.inputs[chosen], targets).nats
    scale = 1 / math.log(2) / float(byte_lengths[targets[mask]].sum())
    gains = np.where(mask, unigram[chosen] - nats, 0).sum(axis=1)
    stderr = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) >= MIN_UNTRAINED_WINDOWS else math.inf
    return UntrainedScore(
        bits_per_byte=float(nats[mask].sum()) * scale,
        unigram_bits_per_byte=float(unigram[chosen][mask].sum()) * scale,
        is_better=bool(gains.mean() > UNTRAINED_STDERRS * stderr),
    )


def describe_checks(score: TextScore) -> dict[str, Any]:
    """Return what stands under `checks` in the JSON of `dailytrain score`."""
    difference = score.difference
    training = difference and {**asdict(difference), "is_beyond_noise": difference.is_beyond_noise}
    return {
        **({"training": training} if training else {}),
        "look_ahead": {
            "nats_per_token": score.correction.nats,
            "stderr": score.correction.stderr,
            "stderr_bits_per_byte": score.correction.stderr * score.bits.tokens / math.log(2) / score.bits.bytes,
            "rounding": score.correction.rounding,
            "unseen": score.correction.unseen,
            "is_beyond_rounding": score.correction.is_beyond_rounding,
            "bits_per_byte_uncorrected": score.bits_per_byte_uncorrected,
        },
        "untrained": {
            "bits_per_byte": score.untrained.bits_per_byte,
            "unigram_bits_per_byte": score.untrained.unigram_bits_per_byte,
        },
        "products": {
            "precision": score.precision.name,
            "tf32_nats_per_token": score.precision.difference,
            "tf32_stderr": score.precision.stderr,
        },
    }
