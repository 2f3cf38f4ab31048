"""Rows of any length at the memory of one chunk: a row passes in chunks, and the model's state is carried along.

Two ways to treat what a chunk owes to those before it:
- `truncated`: nothing is passed back; a chunk's gradient ends at its first token (truncated backpropagation through
  time, Williams and Peng 1990). One forward and one backward pass;
- `through`: the gradient of the state is handed from each chunk to the one before it, so that a row's gradient is what
  one long pass would find. States on the way are computed again and not all kept (after Chen et al., arXiv 1604.06174,
  section 3): `FAN` of them on each level of a tree over the chunks, so that memory grows with the logarithm of the
  row's length, for one more forward pass without gradients a level.

Needed of a model: `bounded` is false, and `advance` leaves the state it is given as it is. A state is tensors in lists
and dataclasses. Not covered: fsdp, which cuts the weights that the gradients are asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from trainer.training.objective import Objective

FAN = 16  # states that are kept on one level: 256 chunks take two levels, 4096 three


def map_tensors(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """Return a state with each of its tensors changed."""
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
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, state)  # type: ignore[func-returns-value]
    return found


def evaluate_in_chunks(objective: Objective, inputs: Tensor, targets: Tensor, each: bool) -> Tensor:
    """Return the objective's answer without gradients, chunk by chunk."""
    state, parts = None, []
    for x, y in zip(inputs.split(objective.chunk, 1), targets.split(objective.chunk, 1), strict=True):
        features, state = objective.model.advance(x, state)
        parts.append(objective.loss_of(features, y, each).view(len(x) if each else 1, -1))
    return torch.cat(parts, 1).flatten() if each else torch.cat(parts).sum()


class ChunkedBPTT(torch.autograd.Function):
    """The sum of the losses of whole rows; its gradients are ready when it is, as those of the loss's own chunks."""

    @staticmethod
    def forward(ctx: Any, objective: Objective, inputs: Tensor, targets: Tensor, *parameters: nn.Parameter) -> Tensor:
        row = ChunkedRows(objective, inputs, targets, parameters)
        with torch.enable_grad():
            if objective.through:
                row.through(0, len(row.inputs), None, [])
            else:
                row.truncated()
        ctx.gradients = row.gradients
        return row.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        found = (None if g is None else g.mul_(scale.to(g.dtype)) for g in ctx.gradients)
        del ctx.gradients
        return None, None, None, *found


class ChunkedRows:
    """A micro-batch of rows on its way: its chunks, and what has been found so far."""

    def __init__(
        self, objective: Objective, inputs: Tensor, targets: Tensor, parameters: Sequence[nn.Parameter]
    ) -> None:
        self.objective = objective
        self.parameters = parameters
        self.inputs, self.targets = inputs.split(objective.chunk, 1), targets.split(objective.chunk, 1)
        self.loss = torch.zeros((), device=inputs.device)
        self.gradients: list[Tensor | None] = [None] * len(parameters)

    def truncated(self) -> None:
        state: Any = None
        for number in range(len(self.inputs)):
            state, _ = self.learn(number, state, [])

    def through(self, first: int, end: int, state: Any, later: Sequence[Tensor]) -> list[Tensor]:
        """Learn from chunks `first` to before `end`, the last one first.

        `state` is the one before them, `later` the loss's gradient with respect to the tensors of the one after them
        (empty: zero). Returns the gradient with respect to the tensors of `state`.
        """
        if end - first == 1:
            return self.learn(first, state, later)[1]
        size = 1
        while size * FAN < end - first:
            size *= FAN
        starts = range(first, end, size)
        states = [state]
        for start in starts[:-1]:
            # A state's tensors are views of a whole chunk's: what is kept must not hold on to that.
            states.append(map_tensors(Tensor.clone, self.passed(start, start + size, states[-1])))
        for start in reversed(starts):
            later = self.through(start, min(start + size, end), states.pop(), later)
        return list(later)

    @torch.no_grad()
    def passed(self, first: int, end: int, state: Any) -> Any:
        """Return the state after some chunks."""
        for x in self.inputs[first:end]:
            _, state = self.objective.model.advance(x, state)
        # Autocast remembers weights that it has translated, here without a way back for gradients.
        torch.clear_autocast_cache()
        return state

    def learn(self, number: int, state: Any, later: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
        """Add a chunk's loss and gradients; return the state after it and the gradient of the one before it."""
        before = map_tensors(lambda tensor: tensor.detach().requires_grad_(self.objective.through), state)
        features, after = self.objective.model.advance(self.inputs[number], before)
        loss = self.objective.loss_of(features, self.targets[number])
        wanted = [*self.parameters, *(collect_tensors(before) if self.objective.through else [])]
        ends, weights = [loss, *(collect_tensors(after) if later else [])], [torch.ones_like(loss), *later]
        found = torch.autograd.grad(ends, wanted, weights, allow_unused=True)
        self.loss += loss.detach()
        self.gradients = [
            new if old is None else old if new is None else old.add_(new)
            for old, new in zip(self.gradients, found, strict=False)
        ]
        of_state = zip(wanted[len(self.parameters) :], found[len(self.parameters) :], strict=True)
        grown = [torch.zeros_like(tensor) if gradient is None else gradient for tensor, gradient in of_state]
        return map_tensors(Tensor.detach, after), grown
