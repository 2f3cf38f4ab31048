"""Sharding of weights (torch's FSDP2), which is imported where a run asks for it.

- `fsdp`: each process has a shard of every weight, its gradient and its momenta, and gathers a block's weights while
  that block computes. This is torch's FSDP2 through Fabric's `ModelParallelStrategy`; Fabric's older `FSDPStrategy`
  does not run on CPUs.
- `zero2`: as `fsdp`, but gathered weights stay from the forward to the backward pass: half the communication, and for
  that time each process holds the whole model (ZeRO stage 2, arXiv 1910.02054, section 5). Its losses equal
  DeepSpeed's, whose engine is not offered: Fabric's strategy for it takes one optimizer, does not clip, and refuses
  CPUs, so it could not be tested (benchmarks/results/rwkv5.md).

All processes must call these functions together.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.errors import ModelError

if TYPE_CHECKING:
    from lightning_fabric.strategies import Strategy
    from torch.distributed.device_mesh import DeviceMesh

Objective = TypeVar("Objective", bound=nn.Module)


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's shard of a tensor that every process has whole, sharded like `like`."""
    is_whole = not hasattr(tensor, "device_mesh")
    if not hasattr(like, "device_mesh") or not is_whole or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole tensor, so nothing is sent.
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def build_sharding_strategy(name: str, devices: int) -> Strategy:
    """Return Fabric's strategy for `fsdp` or `zero2`."""
    from lightning_fabric.strategies import ModelParallelStrategy

    parallelize = partial(shard_model, reshard_after_forward=name == "fsdp")
    return ModelParallelStrategy(parallelize, data_parallel_size=devices, tensor_parallel_size=1)


def shard_model(objective: Objective, mesh: DeviceMesh, reshard_after_forward: bool = True) -> Objective:
    """Shard every weight along its first dimension. Blocks are gathered one by one, other weights together.

    `reshard_after_forward`: free a block's gathered weights after its forward pass and gather them again backward.
    """
    from torch.distributed.fsdp import fully_shard

    scalar = next((name for name, weight in objective.model.named_parameters() if weight.ndim == 0), None)
    if scalar is not None:
        raise ModelError(f"fsdp cannot shard {scalar}, which has no dimension: give it the shape (1,).")
    # RWKV-5's state is a view. FSDP2 warns of views because writing into one would break its hooks; we never do.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(\w+\) returned a view tensor")
    for block in objective.model.repeated_blocks():
        fully_shard(block, mesh=mesh["data_parallel"], reshard_after_forward=reshard_after_forward)
    fully_shard(objective, mesh=mesh["data_parallel"])
    return objective


def load_full_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights into a sharded model. Raises RuntimeError for other names or shapes."""
    parameters = model.state_dict(keep_vars=True)
    # A shared tensor has several names, of which one is enough.
    loaded, expected = {id(parameters.get(name)) for name in weights}, {id(tensor) for tensor in parameters.values()}
    if loaded != expected:
        raise RuntimeError("the names of the weights differ")
    with torch.no_grad():
        for name, tensor in weights.items():
            if tensor.shape != parameters[name].shape:
                raise RuntimeError(f"the shape of {name} differs")
            parameters[name].copy_(shard_like(tensor, parameters[name]))


def load_full_optimizer_state(optimizer: Optimizer, content: dict[str, Any]) -> None:
    """Load the state of a `state_dict` of whole tensors into an optimizer whose parameters may be sharded.

    The settings of its groups stay. Raise ValueError for a tensor that the optimizer would not have made.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in content["state"].items():
        for name, value in {**values, **values.get(QUANTIZED_STATE, {})}.items():
            if isinstance(value, Tensor) and not is_state_of(name, value, parameters[number]):
                raise ValueError(f"{name} of parameter {number} has another shape or type")
    state = {
        number: {
            name: shard_like(value, parameters[number]) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        for number, values in content["state"].items()
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for number, values in state.items():
        kept = optimizer.state[parameters[number]]
        for name, value in values.items():
            # torch has cast it to the parameter's type, which loses digits of what is kept in another one.
            if isinstance(value, Tensor) and kept[name].dtype != value.dtype:
                kept[name] = value.to(parameters[number].device)


QUANTIZED_STATE = "__bnb_optimizer_quant_state__"  # bitsandbytes' name
QUANTIZED_BLOCK = 256  # numbers that share a scale


def is_state_of(name: str, value: Tensor, parameter: Tensor) -> bool:
    """Whether an optimizer may keep a tensor for a parameter. Fused kernels read and write it without a look."""
    whole = tuple(parameter.shape)
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("step", "count"), ()),
        "variance": (*whole[:-1], 1),
        **dict.fromkeys(("qmap1", "qmap2"), (256,)),
        **dict.fromkeys(("absmax1", "absmax2"), (-(-parameter.numel() // QUANTIZED_BLOCK),)),
    }
    # A table in bf16 keeps the rest of its digits, and a table of n-grams one number for each slice.
    dtypes = {torch.float32, *((torch.bfloat16, torch.int16) if parameter.dtype == torch.bfloat16 else ())}
    dtypes |= {torch.uint8} if name in ("state1", "state2") else set()
    is_slices = name == "square" and tuple(value.shape) == whole[:2]
    has_shape = tuple(value.shape) == shapes.get(name, whole) or is_slices
    is_dense = value.is_contiguous() or value.stride() == parameter.stride()
    return has_shape and is_dense and value.dtype in dtypes
