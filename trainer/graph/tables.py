"""Tables of a traced architecture in bf16: embeddings whose rows autocast casts to 16 bits in any case.

The forward pass is the same as with tables in fp32. Gradients of tables are summed in fp32 within a micro-batch and in
bf16 over micro-batches. `trainer.optim.table_adamw` keeps what bf16 leaves out of the weights.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from trainer.graph.build import GraphFunction
from trainer.graph.model import GraphModel, get_stored
from trainer.ops.elementwise import cast_for_autocast


class LookUpFunction(torch.autograd.Function):
    """Rows of a table, whose gradient is summed in fp32 on every device."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.dtype = table.size(0), table.dtype
        return F.embedding(tokens, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        total = torch.ops.aten.embedding_dense_backward(gradient.float(), tokens, ctx.rows, -1, False)
        return total.to(ctx.dtype), None


def look_up(table: Tensor, tokens: Tensor) -> Tensor:
    """Return rows of a table in bf16, in fp32 without autocast."""
    rows = LookUpFunction.apply(table, tokens)
    return rows if torch.is_autocast_enabled(rows.device.type) else rows.float()


def convert_tables_to_bf16(model: GraphModel, candidates: Collection[nn.Parameter]) -> int:
    """Convert those of the candidates that graphs only look up and cast; return their number."""
    readers: dict[int, list[tuple[GraphFunction, fx.Node]]] = {}
    for passes in (model.training_passes, model.evaluation_passes):
        for function in (passes.features, passes.logits):
            nodes = {node.name: node for node in function.module.graph.nodes if node.op == "placeholder"}
            for number, name in enumerate(function.stored_names):
                readers.setdefault(id(get_stored(model, name)), []).append((function, nodes[f"stored_{number}"]))
    converted = 0
    for table in candidates:
        found = readers.get(id(table), [])
        if not found or not all(is_look_up(user, node) for _, node in found for user in node.users):
            continue
        for function, node in found:
            for user in node.users:
                user.target = look_up
            function.module.recompile()
        table.data = table.data.to(torch.bfloat16)
        converted += 1
    return converted


def is_look_up(node: fx.Node, table: fx.Node) -> bool:
    """Return whether a node looks up rows of a table that are only cast."""
    is_plain = node.target is torch.ops.aten.embedding.default and len(node.args) == 2 and not node.kwargs
    return is_plain and node.args[1] is not table and all(user.target is cast_for_autocast for user in node.users)
