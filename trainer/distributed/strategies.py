"""Strategies for several devices with one process each: how weights are distributed, and agreement on values.

- `ddp`: each process has the whole model, and gradients are averaged.
- `fsdp`: each process has a shard of every weight, its gradient and its momenta, and gathers a block's weights while
  that block computes. This is torch's FSDP2 through Fabric's `ModelParallelStrategy`; Fabric's older `FSDPStrategy`
  does not run on CPUs.
- `zero2`: as `fsdp`, but gathered weights stay from the forward to the backward pass: half the communication, and for
  that time each process holds the whole model (ZeRO stage 2, arXiv 1910.02054, section 5). Its losses equal
  DeepSpeed's, whose engine is not offered: Fabric's strategy for it takes one optimizer, does not clip, and refuses
  CPUs, so it could not be tested (benchmarks/results/rwkv5.md).

All run on GPUs (NCCL) and on CPUs (gloo). Results equal those of one device except for the order of sums.

A checkpoint has whole tensors, so a run may continue with another strategy. Each process evaluates all of dev: the
result is then identical everywhere, and evaluation is not charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainer.distributed.sharding import gather_tensor, shard_model
from trainer.ops.ngram_memory import get_row_gradients

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import Strategy


def build_strategy(name: str, devices: int) -> Strategy | str:
    """Return Fabric's strategy for `single`, `ddp`, `fsdp` or `zero2`."""
    if name == "single":
        return "auto"
    if name == "ddp":
        return "ddp"
    from lightning_fabric.strategies import ModelParallelStrategy

    parallelize = partial(shard_model, reshard_after_forward=name == "fsdp")
    return ModelParallelStrategy(parallelize, data_parallel_size=devices, tensor_parallel_size=1)


def average_across_processes(fabric: Fabric, values: Sequence[float]) -> list[float]:
    """Return the means over all processes, the same numbers in each, so that all take the same decisions."""
    if fabric.world_size == 1:
        return list(values)
    mean: Any = fabric.all_reduce(torch.tensor(values, dtype=torch.float64, device=fabric.device), reduce_op="mean")
    return mean.tolist()


def average_tensor(fabric: Fabric, value: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes, on the device."""
    if fabric.world_size == 1:
        return value
    mean: Any = fabric.all_reduce(value.double(), reduce_op="mean")
    return mean


def compute_gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """Return the norm of all gradients together in fp32, None if there are none."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    tables = filter(None, map(get_row_gradients, parameters))
    norms = [torch.linalg.vector_norm(sums) for table in tables for _, sums, _ in table.iterate_sums()]
    wide = [gradient for gradient in gradients if gradient.dtype != torch.bfloat16]
    norms += [gather_tensor(torch.nn.utils.get_total_norm(wide))] if wide else []
    norms += [torch.linalg.vector_norm(each, dtype=torch.float32) for each in gradients if each.dtype == torch.bfloat16]
    if len(norms) < 2:
        return norms[0] if norms else None
    return torch.linalg.vector_norm(torch.stack(norms))
