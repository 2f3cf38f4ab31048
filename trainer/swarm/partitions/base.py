"""The interface of a partition, and the assignment of blocks to stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from torch import Tensor, nn

from trainer.errors import UserError
from trainer.models.base import LanguageModel

Parts = Sequence[tuple[nn.Module, str]]  # The owner and the name of each part


class PartitionError(UserError):
    """This architecture, or this size of it, cannot be partitioned as requested."""


@dataclass
class StageCache:
    """The cache of one stage's blocks for a text: keys and values, or recurrent states."""

    length: int = 0  # tokens so far
    blocks: dict[int, Any] = field(default_factory=dict)  # by the number of the block


class Partition(Protocol):
    """The functions of a partition module. They accept models that lack the parts of other stages.

    Stages send one tensor `[B, T, width x streams]`: the residual stream and what else later blocks read. `tokens` and
    `hidden` are those after `cache`, which `run_blocks` extends. Without a cache they start a row.
    """

    def get_blocks(self, model: LanguageModel) -> nn.ModuleList:
        """Return the blocks in order."""

    def get_end_parts(self, model: LanguageModel) -> tuple[Parts, Parts]:
        """Return the parts that only the first stage needs, and those that only the last needs.

        A part in both lists is a head that is tied to the embedding, which several stages cannot share.
        """

    def count_streams(self, config: Any, done: int) -> int:
        """Return the number of tensors `[B, T, width]` that leave block `done - 1`."""

    def build_cache(self, model: LanguageModel) -> Any:
        """Return the cache of a stage before the first token."""

    def embed_tokens(self, model: LanguageModel, tokens: Tensor, cache: Any = None) -> Tensor:
        """Return the input of the first block, `[B, T, width x streams]`."""

    def run_blocks(
        self, model: LanguageModel, tokens: Tensor, hidden: Tensor, start: int, stop: int, cache: Any = None
    ) -> Tensor:
        """Return the output of block `stop - 1`, given the input of block `start`."""

    def normalize_output(self, model: LanguageModel, hidden: Tensor) -> Tensor:
        """Return the head's input `[B, T, width]`, given the output of the last block."""


@lru_cache
def balance_blocks(costs: tuple[int, ...], head: int, stages: int) -> tuple[range, ...]:
    """Return each stage's blocks, such that the most expensive stage is as cheap as possible.

    `costs` are the blocks' and `head` the head's, in one unit (matrix parameters). The embedding is a lookup and costs
    nothing.
    """
    if not 1 <= stages <= len(costs):
        raise PartitionError(f"{len(costs)} blocks cannot be partitioned into {stages} stages: each needs one")
    return find_best_split(costs, head, 0, stages)[1]


def find_best_split(costs: tuple[int, ...], head: int, start: int, stages: int) -> tuple[int, tuple[range, ...]]:
    """Return the cost of the most expensive stage and the split of the blocks from `start` on."""
    if stages == 1:
        return sum(costs[start:]) + head, (range(start, len(costs)),)
    best: tuple[int, tuple[range, ...]] | None = None
    for stop in range(start + 1, len(costs) - stages + 2):
        cost = sum(costs[start:stop])
        if best is not None and cost >= best[0]:
            break  # more blocks only make this stage more expensive
        most, others = find_best_split(costs, head, stop, stages - 1)
        if best is None or max(cost, most) < best[0]:
            best = max(cost, most), (range(start, stop), *others)
    assert best is not None
    return best
