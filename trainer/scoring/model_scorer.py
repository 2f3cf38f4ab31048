"""Losses of a model's predictions, in one process: of a traced architecture, or of an architecture's own module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trainer.errors import DivergenceError, ModelError
from trainer.models.base import LanguageModel
from trainer.scoring.look_ahead import Losses
from trainer.scoring.windows import pad_rows

Tokens = NDArray[np.int64]
RowCallback = Callable[[int], None]  # called with the number of rows that are done
ALL_POSITIONS = slice(None)
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TargetScores(NamedTuple):
    """A model's predictions of target tokens."""

    nats: Losses
    is_greedy: NDArray[np.bool_]  # whether the token was the most likely one


class ModelScorer:
    """Computes predictions on one device, each row in a pass of its own: a model cannot read another row.

    Rows are padded to the length of a training row. Each pass gets its own copy of the tokens. After it, parameters and
    buffers are compared with copies made before the first pass. So no pass can leave something for the next. The model
    is on the device from the first pass until `unload`; `trainer.accounting.training_size.estimate_scoring_memory`
    computes the memory.
    """

    def __init__(self, model: LanguageModel, device: torch.device, sequence_length: int) -> None:
        self.device = device
        self.model = model.eval()
        self.sequence_length = sequence_length
        self.stored: dict[str, Tensor] | None = None  # None: the model is not on the device

    @cached_property
    def vocabulary_size(self) -> int:
        return self.compute_logits(np.zeros(self.sequence_length, np.int64)).size(-1)

    def load(self) -> dict[str, Tensor]:
        """Put the model on the device; return the copies to compare it with."""
        if self.stored is None:
            self.model.to(self.device)
            self.stored = {name: tensor.clone() for name, tensor in self.list_stored()}
        return self.stored

    def unload(self) -> None:
        """Free the device's memory until the next pass."""
        self.model.to("cpu")
        self.stored = None

    def list_stored(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def check_unchanged(self) -> None:
        """Raise `ModelError` if a pass has written to a stored tensor."""
        stored = self.load()
        for name, tensor in self.list_stored():
            if not torch.equal(view_bits(tensor), view_bits(stored[name])):
                raise ModelError(
                    f"The forward pass changes {name}. A pass may write to no parameter and no buffer: `clone()` what"
                    " it changes."
                )

    @torch.inference_mode()
    def compute_logits(self, row: Tokens, positions: slice = ALL_POSITIONS) -> Tensor:
        """Return logits `[positions, vocabulary]` for token ids `[T]`."""
        self.load()
        features = self.model.features(self.copy_to_device(row[None]))
        logits = self.model.logits(features[:, positions])
        self.check_unchanged()
        if logits.shape[:-1] != (1, len(row[positions])):
            raise ModelError(
                "The model returned something other than one row of logits for each token of its input. Return logits"
                " of shape [batch, tokens, vocabulary]."
            )
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
        logits, expected = logits.float(), self.copy_to_device(targets)
        nats = F.cross_entropy(logits, expected, reduction="none")
        if not nats.isfinite().all():
            raise DivergenceError(
                "The model returned NaN or infinite logits. If its training loss was finite, look for operators that"
                " overflow on new text, such as `exp` or a division by zero."
            )
        is_greedy = logits.argmax(-1) == expected
        return TargetScores(nats.double().cpu().numpy(), is_greedy.cpu().numpy())

    def copy_to_device(self, values: Tokens) -> Tensor:
        return torch.tensor(values, device=self.device)


def view_bits(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as integers: 0 and -0 differ, and NaN equals itself."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view(INTEGERS[real.element_size()])


def score_answer(
    scorer: ModelScorer,
    row: Tokens,
    positions: Tokens,
    text: Tokens,
    end_of_text: int,
    rng: np.random.Generator | None,
) -> TargetScores:
    """Score what follows some positions of a row. `rng`: each in a pass where tokens of `text` replace later ones."""
    length = scorer.sequence_length
    inputs, targets = (pad_rows([part], length, end_of_text) for part in (row[:-1], row[1:]))
    if rng is not None:
        copies = replace_later_tokens(inputs.repeat(len(positions), axis=0), positions, text, rng)
        return scorer.score_positions(copies, positions, targets[0, positions])
    scores = scorer.score_rows(inputs, targets)
    return TargetScores(scores.nats[0, positions], scores.is_greedy[0, positions])


def replace_later_tokens(inputs: Tokens, positions: Tokens, text: Tokens, rng: np.random.Generator) -> Tokens:
    """Return rows `[n, T]` in which each token after a row's position is a random one of `text`.

    Pieces of real text would contain what follows with some probability.
    """
    is_later = np.arange(inputs.shape[1]) > positions[:, None]
    return np.where(is_later, rng.choice(text, size=inputs.shape), inputs)
