"""Several devices, one process each: who holds which weights, and what all of them agree on.

`ddp`: each has the whole model, and gradients are averaged. `fsdp`: each has a part of every weight, its gradient and
its momenta, and gathers a block's weights while that block computes (torch's FSDP2, by Fabric's
`ModelParallelStrategy`; Fabric's older `FSDPStrategy` refuses CPUs). `zero2`: the same, but that weights once gathered
stay from the forward to the backward pass: half as much to send, and for that time each has the whole model (ZeRO's
stage 2, arXiv 1910.02054, section 5; DeepSpeed itself is not used: its engine would take the loop's place). All run on
GPUs (NCCL) and on CPUs (gloo). The numbers are those of one device but for the order of sums.

A checkpoint has whole tensors, whatever the strategy: a run may go on with another one. Each process evaluates all of
dev: the answer is then the same to the last digit, and evaluation is not charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainer.config.resolve import ResolvedConfig
from trainer.distributed.sharding import shard, whole

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import Strategy


def strategy(resolved: ResolvedConfig) -> Strategy | str:
    """Return it as Fabric wants it."""
    if resolved.strategy == "single":
        return "auto"
    if resolved.strategy == "ddp":
        return "ddp"
    from lightning.fabric.strategies import ModelParallelStrategy

    cut = partial(shard, again=resolved.strategy == "fsdp")
    return ModelParallelStrategy(cut, data_parallel_size=resolved.devices, tensor_parallel_size=1)


def agree(fabric: Fabric, values: Sequence[float]) -> list[float]:
    """Return the means over all processes, the same numbers in each: what decides must not differ."""
    if fabric.world_size == 1:
        return list(values)
    mean: Any = fabric.all_reduce(torch.tensor(values, dtype=torch.float64, device=fabric.device), reduce_op="mean")
    return mean.tolist()


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """Return the norm of all gradients together; None if there are none."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return whole(torch.nn.utils.get_total_norm(gradients)) if gradients else None
