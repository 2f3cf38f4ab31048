"""Train on rows of any length with the memory of one chunk, carrying the model's state from chunk to chunk.

Two kinds of gradients:
- `truncated`: a chunk's gradient ends at its first token (truncated backpropagation through time, Williams and Peng
  1990). One forward and one backward pass;
- `through`: each chunk passes the gradient of the state to the previous chunk, so a row's gradient equals that of one
  long pass. States are recomputed (Chen et al., arXiv 1604.06174, section 3): `FAN_OUT` of them are stored on each
  level of a tree of chunks. Memory grows with the logarithm of the row's length; each level costs one forward pass.

Requires a model with `bounded` false, whose `advance` does not change its argument. With sharded weights each chunk is
a pass of the whole FSDP module, forward and backward (`ShardedRows`); otherwise a row is one autograd function
(`ChunkedBPTT`), as DDP expects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainer.models.base import LanguageModel

FAN_OUT = 16  # states stored on one level: 256 chunks need two levels, 4096 three


class ChunkedObjective(Protocol):
    """What this file needs of `trainer.training.objective.Objective`, which imports it."""

    model: LanguageModel
    chunk: int
    full_gradients: bool

    def compute_loss(self, features: Tensor, targets: Tensor, per_position: bool = False) -> Tensor: ...


def map_tensors(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """Return a state with `change` applied to each of its tensors."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, list | tuple):
        return type(state)(map_tensors(change, each) for each in state)
    if dataclasses.is_dataclass(state):
        fields = {field.name: map_tensors(change, getattr(state, field.name)) for field in dataclasses.fields(state)}
        return dataclasses.replace(state, **fields)  # type: ignore[type-var]
    return state


def collect_tensors(state: Any) -> list[Tensor]:
    """Return a state's tensors, in order."""
    tensors: list[Tensor] = []
    map_tensors(lambda tensor: tensors.append(tensor) or tensor, state)  # type: ignore[func-returns-value]
    return tensors


class CarriedState:
    """A model's state on its way into a sharded module and out of it.

    FSDP takes the tensors in lists and tuples for inputs of a pass, and reduces gradients once theirs are complete: too
    early here. It leaves other objects alone, as Fabric does.
    """

    def __init__(self, content: Any) -> None:
        self.content = content


def evaluate_in_chunks(objective: ChunkedObjective, inputs: Tensor, targets: Tensor, per_position: bool) -> Tensor:
    """Return the loss without gradients, chunk by chunk. `per_position`: as in `Objective`."""
    state, parts = None, []
    for x, y in zip(inputs.split(objective.chunk, 1), targets.split(objective.chunk, 1), strict=True):
        features, state = objective.model.advance(x, state)
        parts.append(objective.compute_loss(features, y, per_position).view(len(x) if per_position else 1, -1))
    return torch.cat(parts, 1).flatten() if per_position else torch.cat(parts).sum()


class ChunkedBPTT(torch.autograd.Function):
    """The sum of the losses of whole rows. The forward pass also computes the gradients."""

    @staticmethod
    def forward(
        ctx: Any, objective: ChunkedObjective, inputs: Tensor, targets: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        rows = ChunkedRows(objective, inputs, targets, parameters)
        with torch.enable_grad():
            if objective.full_gradients:
                rows.run_through(0, len(rows.inputs), None, [])
            else:
                rows.run_truncated()
        ctx.gradients = rows.gradients
        return rows.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if g is None else g.mul_(scale[None]) for g in ctx.gradients)
        del ctx.gradients
        return None, None, None, *gradients


class ChunkedRows:
    """A micro-batch of rows: its chunks, and the sums of their losses and gradients so far."""

    def __init__(
        self, objective: ChunkedObjective, inputs: Tensor, targets: Tensor, parameters: Sequence[nn.Parameter]
    ) -> None:
        self.objective = objective
        self.parameters = parameters
        self.inputs, self.targets = inputs.split(objective.chunk, 1), targets.split(objective.chunk, 1)
        self.loss = torch.zeros((), device=inputs.device)
        self.gradients: list[Tensor | None] = [None] * len(parameters)

    def run_truncated(self) -> None:
        state: Any = None
        for number in range(len(self.inputs)):
            state, _ = self.train_chunk(number, state, [])

    def run_through(self, first: int, end: int, state: Any, grads_after: Sequence[Tensor]) -> list[Tensor]:
        """Train on chunks `first` to `end - 1` in reverse; return the gradient of `state`, which precedes them.

        `grads_after`: gradients of the state after them (empty: zero).
        """
        if end - first == 1:
            return self.train_chunk(first, state, grads_after)[1]
        size = 1
        while size * FAN_OUT < end - first:
            size *= FAN_OUT
        starts = range(first, end, size)
        states = [state]
        for start in starts[:-1]:
            # A state's tensors are views of a whole chunk's: the copy lets that be freed.
            states.append(map_tensors(Tensor.clone, self.advance_state(start, start + size, states[-1])))
        for start in reversed(starts):
            grads_after = self.run_through(start, min(start + size, end), states.pop(), grads_after)
        return list(grads_after)

    @torch.no_grad()
    def advance_state(self, first: int, end: int, state: Any) -> Any:
        """Return the state after chunks `first` to `end - 1`."""
        for x in self.inputs[first:end]:
            _, state = self.objective.model.advance(x, state)
        # Autocast caches converted weights, here without their gradients.
        torch.clear_autocast_cache()
        return state

    def train_chunk(self, number: int, state: Any, grads_after: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
        """Add a chunk's loss and gradients; return the state after it and the gradient of the state before it."""
        before = map_tensors(lambda tensor: tensor.detach().requires_grad_(self.objective.full_gradients), state)
        features, after = self.objective.model.advance(self.inputs[number], before)
        loss = self.objective.compute_loss(features, self.targets[number])
        inputs = [*self.parameters, *(collect_tensors(before) if self.objective.full_gradients else [])]
        outputs = [loss, *(collect_tensors(after) if grads_after else [])]
        weights = [torch.ones_like(loss), *grads_after]
        gradients = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
        self.loss += loss.detach()
        self.gradients = [
            new if old is None else old if new is None else old.add_(new)
            for old, new in zip(self.gradients, gradients, strict=False)
        ]
        state_gradients = zip(inputs[len(self.parameters) :], gradients[len(self.parameters) :], strict=True)
        grads_before = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in state_gradients]
        return map_tensors(Tensor.detach, after), grads_before


class ShardedRows(ChunkedRows):
    """Rows of a sharded model. FSDP gathers weights and reduces gradients in its own passes, so gradients are added to
    the parameters.
    """

    def __init__(
        self, module: nn.Module, objective: ChunkedObjective, inputs: Tensor, targets: Tensor, scale: float
    ) -> None:
        super().__init__(objective, inputs, targets, ())
        self.module, self.scale = module, scale

    def run_passes(self) -> Tensor:
        """Run forward and backward over all chunks; return the sum of the losses times `scale`."""
        if self.objective.full_gradients:
            self.run_through(0, len(self.inputs), None, [])
        else:
            self.run_truncated()
        return self.loss * self.scale

    @torch.no_grad()
    def advance_state(self, first: int, end: int, state: Any) -> Any:
        for x in self.inputs[first:end]:
            state = self.module(x, None, state=CarriedState(state))[1].content
        torch.clear_autocast_cache()
        return state

    def train_chunk(self, number: int, state: Any, grads_after: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
        before = map_tensors(lambda tensor: tensor.detach().requires_grad_(self.objective.full_gradients), state)
        loss, carried = self.module(self.inputs[number], self.targets[number], state=CarriedState(before))
        outputs = [loss, *(collect_tensors(carried.content) if grads_after else [])]
        torch.autograd.backward(outputs, [torch.full_like(loss, self.scale), *grads_after])
        self.loss += loss.detach()
        grads_before = [torch.zeros_like(x) if x.grad is None else x.grad for x in collect_tensors(before)]
        return map_tensors(Tensor.detach, carried.content), grads_before
