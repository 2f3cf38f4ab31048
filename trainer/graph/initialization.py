"""Compute the initial tensors of a traced architecture from a seed.

The recorded operators of the constructor run on the CPU and give its parameters to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.graph.build import build_constants, build_function
from trainer.graph.schema import GraphError, Initialization


def compute_initial_tensors(initialization: Initialization) -> Mapping[str, Tensor]:
    """Run the initialization on the CPU with the current random state; return the stored tensors by name."""
    with torch.no_grad():
        function = build_function(initialization.graph)
        stored = build_constants(initialization)
        results = function.run(torch.device("cpu"), (), stored)
    tensors = {}
    for description, tensor in zip(initialization.tensors, results, strict=True):
        dtype = getattr(torch, description.dtype)
        if tuple(tensor.shape) != description.shape or tensor.dtype is not dtype:
            raise GraphError(f"the initialization computes {tuple(tensor.shape)} for {description.name}")
        tensors[description.name] = tensor.detach().clone()
    return tensors
