"""Products of a traced architecture in fp8: torchao's linear layers in place of the graph's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from trainer.graph.build import GraphFunction
from trainer.graph.model import GraphModel, get_stored

MULTIPLE = 16  # of sizes, which the kernels need
RECIPE = "tensorwise"
"""torchao's: one scale for a matrix; e4m3 forward, e5m2 for gradients. A scale for each row made nanochat slower than
bf16 at d26 (8 H100s: 564k tokens/s, 630k in bf16, 740k with one scale)."""


def build_config(emulate: bool = False) -> Any:
    """Return torchao's configuration. `emulate`: round as in fp8 and multiply in bf16, which a CPU can."""
    from torchao.float8 import Float8LinearConfig

    config = Float8LinearConfig.from_recipe_name(RECIPE)
    return dataclasses.replace(config, emulate=emulate, pad_inner_dim=True)  # pads rows that are no multiple of 16


class Fp8Linear(nn.Module):
    """A linear layer of torchao, without weights of its own."""

    def __init__(self, weight: Tensor, emulate: bool = False) -> None:
        super().__init__()
        from torchao.float8 import convert_to_float8_training

        outputs, inputs = weight.shape
        holder = nn.Sequential(nn.Linear(inputs, outputs, bias=False, device="meta"))
        convert_to_float8_training(holder, config=build_config(emulate))
        self.layer = holder[0]

    def forward(self, x: Tensor, weight: Tensor) -> Any:
        return functional_call(self.layer, {"weight": weight}, (x,))


def convert_graph_to_fp8(model: GraphModel, build_layer: Callable[[Tensor], nn.Module] = Fp8Linear) -> int:
    """Let the features and the head of training multiply in fp8; return the number of products. Evaluation does not.

    Converted are linear layers without a bias whose sizes are multiples of 16. `build_layer`: from a weight, returns a
    module that takes rows and the weight.
    """
    converted = 0
    for function in (model.training_passes.features, model.training_passes.logits):
        for node in list(function.module.graph.nodes):
            weight = find_weight(model, function, node) if node.target is torch.ops.aten.linear.default else None
            if weight is not None:
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
