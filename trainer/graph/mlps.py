"""Replace the MLPs with ReLU^2 of a traced architecture by one function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx

from trainer.graph.model import GraphModel
from trainer.ops.elementwise import squared_relu


def fuse_mlps(model: GraphModel, compute_mlp: Callable[[Tensor, Tensor, Tensor], Tensor]) -> int:
    """Let the features of training compute each MLP by `compute_mlp(x, up, down)`; return their number.

    An MLP is a linear layer, ReLU^2 and a linear layer, without biases, whose values nothing else reads.
    """
    module = model.traced_passes[True].features.module
    fused = 0
    for node in list(module.graph.nodes):
        if node.target is squared_relu and is_inside_mlp(node):
            up, (down,) = node.args[0], node.users
            with module.graph.inserting_before(down):
                replacement = module.graph.call_function(compute_mlp, (*up.args, down.args[1]))
            replacement.meta = dict(down.meta)
            down.replace_all_uses_with(replacement)
            for each in (down, node, up):
                module.graph.erase_node(each)
            fused += 1
    module.recompile()
    return fused


def is_inside_mlp(node: fx.Node) -> bool:
    (up,) = node.args
    users = list(node.users)
    return (
        isinstance(up, fx.Node)
        and is_linear(up)
        and len(up.users) == len(users) == 1
        and is_linear(users[0])
        and users[0].args[0] is node
    )


def is_linear(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.linear.default and len(node.args) == 2 and not node.kwargs
