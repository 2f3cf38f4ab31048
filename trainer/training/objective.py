"""The training objective: the sum of a model's losses, with its head applied in chunks (`trainer.ops.losses`).

An architecture must compute the logits of each position independently, without side effects on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.data.loader import IGNORE_INDEX
from trainer.graph.model import GraphModel, get_stored
from trainer.models.base import LanguageModel
from trainer.ops.losses import (
    ChunkedLossFunction,
    ChunkLoss,
    choose_chunk_positions,
    iterate_chunks,
    limit_chunk_positions,
)

if TYPE_CHECKING:
    from trainer.training.chunked_bptt import CarriedState


class Objective(nn.Module):
    """The loss of inputs and targets `[B, T]` in nats, fp32: the sum, or with `per_position` one value each `[B x T]`.

    `features` and `chunk_loss` are the two functions that torch.compile compiles; the loop over chunks stays Python.
    Rows longer than `chunk` tokens are read in chunks; `full_gradients`: across chunks (`chunked_bptt`).
    """

    def __init__(self, model: LanguageModel, l2wrap: float = 0.0, chunk: int = 0, full_gradients: bool = False) -> None:
        super().__init__()
        self.model = model
        self.l2wrap = l2wrap
        self.chunk, self.full_gradients = chunk, full_gradients
        self.features: Callable[[Tensor], Tensor] = model.features
        self.chunk_loss: ChunkLoss = self.compute_chunk_loss
        self.vocabulary_size = 0
        self.memories = model.list_memories()
        self.head_matrices = model.list_head_matrices() if isinstance(model, GraphModel) else []

    def compute_chunk_loss(self, features: Tensor, targets: Tensor, reduction: str, *matrices: Tensor) -> Tensor:
        """Return the nats of features `[1, N, D]` and targets `[N]`. `matrices`: in place of `head_matrices`."""
        logits = self.compute_logits(features, matrices).flatten(0, 1).float()
        nats = F.cross_entropy(logits, targets, reduction=reduction)
        return nats + self.compute_l2wrap(logits, targets) if self.l2wrap and torch.is_grad_enabled() else nats

    def compute_logits(self, features: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        if not matrices:
            return self.model.logits(features)
        assert isinstance(self.model, GraphModel)
        return self.model.compute_logits(features, dict(zip(self.head_matrices, matrices, strict=True)))

    def compute_l2wrap(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return zero, with the gradient of L2Wrap: `l2wrap` times each learned position's largest logit.

        It keeps all logits from drifting upwards together, which leaves the loss unchanged (from RWKV-LM).
        """
        largest = logits.max(-1).values * (targets != IGNORE_INDEX)
        extra = self.l2wrap / 2 * largest.square().sum()
        return extra - extra.detach()

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor | None,
        per_position: bool = False,
        state: CarriedState | None = None,
    ) -> Any:
        """With a `state`, return the loss (None without targets) and the state after the inputs."""
        if state is not None:
            return self.advance(inputs, targets, state)
        assert targets is not None, "only a pass with a state can do without"
        if not 0 < self.chunk < inputs.size(1):
            return self.compute_loss(self.compute_features(inputs), targets, per_position)
        from trainer.training.chunked_bptt import ChunkedBPTT, evaluate_in_chunks

        if per_position or not torch.is_grad_enabled():
            return evaluate_in_chunks(self, inputs, targets, per_position)
        return ChunkedBPTT.apply(self, inputs, targets, *self.get_trainable())

    def advance(
        self, inputs: Tensor, targets: Tensor | None, state: CarriedState
    ) -> tuple[Tensor | None, CarriedState]:
        from trainer.training.chunked_bptt import CarriedState

        features, after = self.model.advance(inputs, state.content)
        return None if targets is None else self.compute_loss(features, targets), CarriedState(after)

    def get_trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def compute_features(self, inputs: Tensor) -> Tensor:
        if not self.memories or not torch.is_grad_enabled():
            return self.features(inputs)
        from trainer.models.ngram_memory import fetch_rows

        with fetch_rows(self.memories, inputs):
            return self.features(inputs)

    def compute_loss(self, features: Tensor, targets: Tensor, per_position: bool = False) -> Tensor:
        """Return the loss as `forward` does, from features `[B, T, D]`."""
        features, targets = features.flatten(0, 1), targets.flatten(0, 1)
        positions = self.count_chunk_positions(features)
        if per_position or not torch.is_grad_enabled():
            reduction = "none" if per_position else "sum"
            parts = [self.chunk_loss(x, y, reduction) for x, y in iterate_chunks(features, targets, positions)]
            return torch.cat(parts) if per_position else torch.stack(parts).sum()
        parameters = self.get_trainable()
        casts = self.choose_casts(features.device.type, parameters)
        return ChunkedLossFunction.apply(self.chunk_loss, positions, features, targets, casts, *parameters)

    def choose_casts(self, device: str, parameters: Sequence[nn.Parameter]) -> dict[int, torch.dtype]:
        """Return the indexes of the parameters that autocast would cast for every chunk, and to which type."""
        if not self.head_matrices or not torch.is_autocast_enabled(device):
            return {}
        assert isinstance(self.model, GraphModel)
        indexes = {id(parameter): index for index, parameter in enumerate(parameters)}
        found = [indexes.get(id(get_stored(self.model, name))) for name in self.head_matrices]
        if any(index is None or parameters[index].dtype != torch.float32 for index in found):
            return {}
        return {index: torch.get_autocast_dtype(device) for index in found if index is not None}

    def count_chunk_positions(self, features: Tensor) -> int:
        """Return how many positions a chunk has: up to `limit_chunk_positions`, dividing evenly if possible."""
        if isinstance(self.model, GraphModel):
            self.vocabulary_size = self.model.vocabulary_size
        if not self.vocabulary_size:
            with torch.no_grad():
                self.vocabulary_size = self.model.logits(features[None, :1]).size(-1)
        number = len(features)
        return choose_chunk_positions(number, limit_chunk_positions(features.device.type, self.vocabulary_size, number))
