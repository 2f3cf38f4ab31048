"""Tensors of which each process holds a part (torch's DTensor, made by FSDP2): whole again, in parts again.

Everything here leaves other tensors as they are. What gathers must be asked by all processes together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.errors import ModelError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Objective = TypeVar("Objective", bound=nn.Module)


def is_part(tensor: Tensor) -> bool:
    # Asked this way since the class takes long to import.
    return hasattr(tensor, "device_mesh")


def whole(tensor: Tensor) -> Tensor:
    """Gather all of a tensor."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a tensor that every process has whole, cut as another of its shape is."""
    if not is_part(like) or is_part(tensor) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole: none has to be sent.
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def shard(objective: Objective, mesh: DeviceMesh, again: bool = True) -> Objective:
    """Cut every weight along its first dimension; a model's blocks are gathered one by one, the rest together.

    `again`: a block's weights are let go after its forward pass and gathered again for the way back.
    """
    from torch.distributed.fsdp import fully_shard

    scalar = next((name for name, weight in objective.model.named_parameters() if weight.ndim == 0), None)
    if scalar is not None:
        raise ModelError(f"fsdp cannot cut {scalar}, which has no dimension: give it the shape (1,).")
    for block in objective.model.repeated_blocks():
        fully_shard(block, mesh=mesh["data_parallel"], reshard_after_forward=again)
    fully_shard(objective, mesh=mesh["data_parallel"])
    return objective


@contextmanager
def gathered(objective: nn.Module) -> Iterator[None]:
    """In here the objective's model may be called itself, by all processes together."""
    sharded = hasattr(objective, "unshard")
    if sharded:
        objective.unshard()
    try:
        yield
    finally:
        if sharded:
            objective.reshard()


def fill_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put whole weights into a model that is cut. Raises RuntimeError if they are not its own."""
    mine = model.state_dict(keep_vars=True)
    named = {id(tensor): name for name, tensor in mine.items()}  # of names for one tensor any will do
    if not weights.keys() <= mine.keys() or {id(mine[name]) for name in weights} != named.keys():
        raise RuntimeError("other names")
    with torch.no_grad():
        for name, tensor in weights.items():
            if tensor.shape != mine[name].shape:
                raise RuntimeError(f"another shape of {name}")
            mine[name].copy_(part_of(tensor, mine[name]))


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's `state_dict` of whole tensors."""
    content = optimizer.state_dict()
    state = {
        number: {name: whole(value) if isinstance(value, Tensor) else value for name, value in mine.items()}
        for number, mine in content["state"].items()
    }
    return {**content, "state": state}


def fill_optimizer(optimizer: Optimizer, content: dict[str, Any]) -> None:
    """Load a `state_dict` of whole tensors into an optimizer whose parameters may be cut."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {
            name: part_of(value, parameters[number]) if isinstance(value, Tensor) else value
            for name, value in mine.items()
        }
        for number, mine in content["state"].items()
    }
    optimizer.load_state_dict({**content, "state": state})
