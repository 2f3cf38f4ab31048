"""Losses of a model's predictions, in one process: of a traced architecture, or of an architecture's own module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trainer.errors import ModelError
from trainer.models.base import LanguageModel
from trainer.scoring.look_ahead import Losses

Tokens = NDArray[np.int64]
RowCallback = Callable[[int], None]  # called with the number of rows that are done
ALL_POSITIONS = slice(None)


class TargetScores(NamedTuple):
    """How a model predicted tokens."""

    nats: Losses
    is_greedy: NDArray[np.bool_]  # whether the token was the most likely one


class ModelScorer:
    """Computes predictions on one device, each row in a pass of its own: a model cannot read another row.

    Rows are padded to the length of a training row. After each pass, parameters and buffers are compared with copies
    made before the first one, so no pass can leave something for the next.
    """

    def __init__(self, model: LanguageModel, device: torch.device, sequence_length: int) -> None:
        self.device = device
        self.model = model.to(device).eval()
        self.sequence_length = sequence_length
        self.stored = {name: tensor.clone() for name, tensor in self.list_stored()}
        self.vocabulary_size = self.compute_logits(np.zeros(sequence_length, np.int64)).size(-1)

    def list_stored(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def check_unchanged(self) -> None:
        """Raise `ModelError` if a pass has written to a stored tensor."""
        for name, tensor in self.list_stored():
            if not torch.equal(tensor, self.stored[name]):
                raise ModelError(f"The forward pass changes {name}: a pass writes to no parameter and no buffer.")

    @torch.inference_mode()
    def compute_logits(self, row: Tokens, positions: slice = ALL_POSITIONS) -> Tensor:
        """Return logits `[positions, vocabulary]` for token ids `[T]`."""
        features = self.model.features(self.to_device(row[None]))
        logits = self.model.logits(features[:, positions])
        self.check_unchanged()
        if logits.shape[:-1] != (1, len(row[positions])):
            raise ModelError("The model returned something other than one row of logits for each token of its input.")
        return logits[0]

    def score_rows(self, inputs: Tokens, targets: Tokens, done: RowCallback | None = None) -> TargetScores:
        """Score the targets `[rows, T]` of all positions."""
        found = []
        for number, (row, target) in enumerate(zip(inputs, targets, strict=True), 1):
            found.append(self.score_targets(self.compute_logits(row), target))
            if done:
                done(number)
        return TargetScores(*map(np.stack, zip(*found, strict=True)))

    def score_positions(
        self, inputs: Tokens, positions: Tokens, targets: Tokens, done: RowCallback | None = None
    ) -> TargetScores:
        """Score one target `[rows]` in each row, at `positions [rows]`."""
        found = []
        for number, (row, position, target) in enumerate(zip(inputs, positions, targets, strict=True), 1):
            found.append(self.score_targets(self.compute_logits(row, slice(position, position + 1)), target[None]))
            if done:
                done(number)
        return TargetScores(*map(np.concatenate, zip(*found, strict=True)))

    @torch.inference_mode()
    def score_targets(self, logits: Tensor, targets: Tokens) -> TargetScores:
        logits, expected = logits.float(), self.to_device(targets)
        nats = F.cross_entropy(logits, expected, reduction="none")
        if not nats.isfinite().all():
            raise ModelError("The model returned NaN or infinite logits.")
        is_greedy = logits.argmax(-1) == expected
        return TargetScores(nats.double().cpu().numpy(), is_greedy.cpu().numpy())

    def to_device(self, values: Tokens) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)


def replace_later_tokens(inputs: Tokens, positions: Tokens, text: Tokens, rng: np.random.Generator) -> Tokens:
    """Return rows `[n, T]` in which each token after a row's position is a random one of `text`.

    Pieces of real text would contain what follows with some probability.
    """
    is_later = np.arange(inputs.shape[1]) > positions[:, None]
    return np.where(is_later, rng.choice(text, size=inputs.shape), inputs)
