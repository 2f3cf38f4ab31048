"""Split a graph into the repeated blocks of its architecture, so that equal blocks are compiled once.

A graph is flat, but each call names the module that made it, such as `blocks.3.att`. The calls of a block that follow
each other become a module that takes the block's weights as inputs. Blocks with the same calls share one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from torch import fx, nn

from trainer.graph.build import Region

BLOCK = re.compile(r"^.*?\.\d+(?=\.|$)")
PREFIX = "block_"


def count_calls(graph: fx.Graph, modules: nn.Module) -> int:
    """Return the calls of a graph, those in regions too."""
    regions = [modules.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"]
    inner = sum(
        count_calls(region.function.module.graph, region.function.module)
        for region in regions
        if isinstance(region, Region)
    )
    return len(graph.nodes) + inner


def split_blocks(module: fx.GraphModule) -> list[nn.Module]:
    """Replace the calls of each repeated block by one call, once; return the blocks that differ."""
    found: dict[str, nn.Module] = {}
    for number, nodes in enumerate(find_blocks(module.graph)):
        inputs, outputs = list_inputs(nodes), list_outputs(nodes)
        key = describe_calls(nodes, inputs, outputs, module)
        if key not in found:
            found[key] = extract_block(module, nodes, inputs, outputs)
        replace_calls(module, nodes, inputs, outputs, found[key], f"{PREFIX}{number}")
    if found:
        module.recompile()
    blocks = [child for name, child in module.named_children() if name.startswith(PREFIX)]
    return list({id(block): block for block in blocks}.values())


def has_split_blocks(module: nn.Module) -> bool:
    return any(name.startswith(PREFIX) for name, _ in module.named_children())


def find_blocks(graph: fx.Graph) -> list[list[fx.Node]]:
    """Return the calls of each block that follow each other."""
    runs = [(name, list(nodes)) for name, nodes in groupby(list(graph.nodes), name_block)]
    return [nodes for name, nodes in runs if name is not None]


def name_block(node: fx.Node) -> str | None:
    found = BLOCK.match(node.meta.get("module") or "")
    return found and found[0]


def list_inputs(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Return what the calls read from outside, in the order of their use."""
    inside = set(nodes)
    return list(dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in inside))


def list_outputs(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the calls whose results are read outside."""
    inside = set(nodes)
    return [node for node in nodes if any(user not in inside for user in node.users)]


def describe_calls(
    nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], modules: nn.Module
) -> str:
    """Return a text that is the same for calls that compute the same."""
    numbers = {node: f"%{number}" for number, node in enumerate((*inputs, *nodes))}

    def describe_target(node: fx.Node) -> str:
        if node.op != "call_module":
            return f"{node.op} {node.target}"
        child = modules.get_submodule(str(node.target))
        if not isinstance(child, Region):
            return repr(child)
        inner = child.function.module
        calls = list(inner.graph.nodes)
        return f"{child.condition} ({describe_calls(calls, [], calls[-1:], inner)})"

    def describe_arguments(node: fx.Node) -> Any:
        return fx.map_arg((node.args, node.kwargs), lambda each: Reference(numbers[each]))

    lines = [f"{describe_target(node)} {describe_arguments(node)!r}" for node in nodes]
    return "\n".join((*lines, *(numbers[node] for node in outputs)))


class Reference(str):
    """A value of a graph in a description, where texts are quoted and this is not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def extract_block(
    module: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"input_{number}") for number, node in enumerate(inputs)}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(module, graph)


def replace_calls(
    module: fx.GraphModule,
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    block: nn.Module,
    name: str,
) -> None:
    module.add_submodule(name, block)
    with module.graph.inserting_before(nodes[0]):
        result = module.graph.call_module(name, tuple(inputs))
        results = [module.graph.call_function(operator.getitem, (result, number)) for number in range(len(outputs))]
    for node, replacement in zip(outputs, results, strict=True):
        node.replace_all_uses_with(replacement)
    for node in reversed(nodes):
        module.graph.erase_node(node)
