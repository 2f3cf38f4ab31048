"""Products of a traced architecture in fp8: torchao's linear layers in place of the graph's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from trainer.graph.build import GraphFunction
from trainer.graph.model import GraphModel, get_stored

MULTIPLE = 16  # of sizes, which the kernels need
RECIPE = "rowwise"
"""torchao's: a scale for each row of a matrix instead of one for all, so that one outlier costs its row's precision."""


class Fp8Linear(nn.Module):
    """A linear layer of torchao, without weights of its own."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        outputs, inputs = weight.shape
        holder = nn.Sequential(nn.Linear(inputs, outputs, bias=False, device="meta"))
        convert_to_float8_training(holder, config=Float8LinearConfig.from_recipe_name(RECIPE))
        self.layer = holder[0]

    def forward(self, x: Tensor, weight: Tensor) -> Any:
        return functional_call(self.layer, {"weight": weight}, (x,))


def convert_graph_to_fp8(model: GraphModel, build_layer: Callable[[Tensor], nn.Module] = Fp8Linear) -> int:
    """Let the features of training multiply in fp8; return the number of products. Evaluation and the head do not.

    Converted are linear layers without a bias whose sizes are multiples of 16. `build_layer`: from a weight, returns a
    module that takes rows and the weight.
    """
    function = model.traced_passes[True].features
    converted = 0
    for node in list(function.module.graph.nodes):
        if node.target is torch.ops.aten.linear.default and (weight := find_weight(model, function, node)) is not None:
            convert_node(function.module, node, build_layer(weight), f"fp8_{converted}")
            converted += 1
    function.module.recompile()
    return converted


def find_weight(model: GraphModel, function: GraphFunction, node: fx.Node) -> Tensor | None:
    """Return the stored matrix of a linear layer that can be multiplied in fp8."""
    names = {f"stored_{number}": name for number, name in enumerate(function.stored_names)}
    if len(node.args) != 2 or node.kwargs or not isinstance(node.args[1], fx.Node) or node.args[1].name not in names:
        return None
    weight = get_stored(model, names[node.args[1].name])
    return weight if all(size % MULTIPLE == 0 for size in weight.shape) else None


def convert_node(module: fx.GraphModule, node: fx.Node, layer: nn.Module, name: str) -> None:
    module.add_submodule(name, layer)
    with module.graph.inserting_before(node):
        replacement = module.graph.call_module(name, node.args)
    replacement.meta = dict(node.meta)
    node.replace_all_uses_with(replacement)
    module.graph.erase_node(node)
