"""The contract of a cut, and who gets which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from torch import Tensor, nn

from trainer.models.base import LanguageModel


class CutError(ValueError):
    """This architecture, or this size of it, cannot be cut so."""


class Cut(Protocol):
    """A module's functions, over a model that may lack what is not its stage's.

    Between stages travels one tensor `[B, T, width x streams]`: the residual stream, and beside it whatever later
    blocks look back at.
    """

    def check(self, model: LanguageModel) -> None:
        """Raise `CutError` for a model that cannot be cut whatever the number of stages."""

    def blocks(self, model: LanguageModel) -> nn.ModuleList:
        """Return the blocks, in their order."""

    def ends(self, model: LanguageModel) -> tuple[Sequence[tuple[nn.Module, str]], Sequence[tuple[nn.Module, str]]]:
        """Return where what only the first stage needs is held, as (holder, name), and what only the last needs."""

    def streams(self, config: Any, done: int) -> int:
        """Return how many tensors `[B, T, width]` travel behind so many blocks."""

    def embed(self, model: LanguageModel, tokens: Tensor) -> Tensor:
        """Return what enters the first block, `[B, T, width x streams]`."""

    def through(self, model: LanguageModel, tokens: Tensor, hidden: Tensor, start: int, stop: int) -> Tensor:
        """Return what leaves block `stop - 1` of what entered block `start`."""

    def finish(self, model: LanguageModel, hidden: Tensor) -> Tensor:
        """Return the features `[B, T, width]` that the head reads, of what left the last block."""


@lru_cache
def share(costs: tuple[int, ...], head: int, stages: int) -> tuple[range, ...]:
    """Return each stage's blocks, so that the dearest stage costs the least.

    `costs` are the blocks' and `head` the head's, in any unit (parameters that are multiplied by). An embedding is
    looked up: it costs nothing.
    """
    if not 1 <= stages <= len(costs):
        raise CutError(f"{len(costs)} blocks cannot be cut into {stages} stages: each needs one")
    return best(costs, head, 0, stages)[1]


def best(costs: tuple[int, ...], head: int, start: int, stages: int) -> tuple[int, tuple[range, ...]]:
    """Return the cost of the dearest stage and the cut of the blocks from `start` on."""
    if stages == 1:
        return sum(costs[start:]) + head, (range(start, len(costs)),)
    found: tuple[int, tuple[range, ...]] | None = None
    for stop in range(start + 1, len(costs) - stages + 2):
        own = sum(costs[start:stop])
        if found is not None and own >= found[0]:
            break  # more blocks only make this stage dearer
        dearest, others = best(costs, head, stop, stages - 1)
        if found is None or max(own, dearest) < found[0]:
            found = max(own, dearest), (range(start, stop), *others)
    assert found is not None
    return found
