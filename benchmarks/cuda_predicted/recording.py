"""Records what Inductor would run: operations of each compiled graph, bytes and FLOPs, and planned peak memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

TRITON_SOURCE = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)'''", re.DOTALL)


@dataclass(frozen=True)
class Operation:
    """A kernel, or a call of a library."""

    kind: str  # `triton`, `mm`, `attention`, `attention backward`, or another library function's name
    bytes: int  # read and written
    flops: int
    shape: tuple[int, ...] = ()  # of its first result
    window: int | None = None  # attention: tokens that a query sees

    @property
    def is_product(self) -> bool:
        return self.kind in ("mm", "bmm", "addmm", "baddbmm") or "_scaled_mm" in self.kind


@dataclass
class CompiledGraph:
    is_backward: bool
    operations: list[Operation]
    peak_bytes: int  # planned: inputs that are not parameters, saved tensors and temporary ones
    saved_bytes: int  # of a forward graph: results that are not its inputs
    buffers: list[tuple[str, tuple[int, ...]]]  # type and shape of each tensor in memory
    kernels: dict[str, str] = field(repr=False)  # Triton sources by name

    @property
    def bytes(self) -> int:
        return sum(operation.bytes for operation in self.operations)

    @property
    def flops(self) -> int:
        return sum(operation.flops for operation in self.operations)

    def count(self, kind: str) -> int:
        return sum(operation.kind == kind for operation in self.operations)


def record_compiled_graphs() -> list[CompiledGraph]:
    """Record every graph that Inductor lowers from now on; the graphs themselves run on tensors without data."""
    from torch._inductor.graph import GraphLowering

    records: list[CompiledGraph] = []

    def compile_to_module(lowering: Any) -> Any:
        code, _ = lowering.codegen()
        records.append(describe_graph(lowering, code.value))
        graph = getattr(lowering, "orig_gm", None) or lowering.module

        def call(arguments: Any) -> Any:
            with torch.no_grad():
                return graph(*arguments)

        return SimpleNamespace(call=call, runner=None, __file__="generated.py", key="none")

    GraphLowering.compile_to_module = compile_to_module
    return records


def describe_graph(lowering: Any, source: str) -> CompiledGraph:
    nodes = lowering.scheduler.nodes
    operations = [operation for node in nodes if (operation := describe_operation(node)) is not None]
    buffers = [
        (str(layout.dtype).removeprefix("torch."), tuple(int(size) for size in layout.size))
        for name, buffer in lowering.scheduler.name_to_buf.items()
        if name not in lowering.removed_buffers and hasattr(layout := getattr(buffer.node, "layout", None), "dtype")
    ]
    return CompiledGraph(
        is_backward=bool(lowering.is_backward),
        operations=operations,
        peak_bytes=plan_peak_bytes(lowering),
        saved_bytes=0 if lowering.is_backward else sum_output_bytes(lowering),
        buffers=buffers,
        kernels=dict(TRITON_SOURCE.findall(source)),
    )


def plan_peak_bytes(lowering: Any) -> int:
    from torch._inductor.memory import prepare_planning_info
    from torch.utils._ordered_set import OrderedSet

    scheduler = lowering.scheduler
    inputs, outputs = OrderedSet(lowering.graph_inputs), OrderedSet(lowering.get_output_names())
    maps = (scheduler.name_to_buf, scheduler.name_to_fused_node)
    peak, *_ = prepare_planning_info(scheduler.nodes, *maps, inputs, outputs)
    return int(peak)


def sum_output_bytes(lowering: Any) -> int:
    """Return the bytes of the buffers that a graph leaves behind."""
    buffers = lowering.scheduler.name_to_buf
    layouts = [buffers[name].node.layout for name in set(lowering.get_output_names()) if name in buffers]
    return sum(count_bytes(layout) for layout in layouts if hasattr(layout, "dtype"))


def count_bytes(layout: Any) -> int:
    return math.prod(int(size) for size in layout.size) * layout.dtype.itemsize


def describe_operation(node: Any) -> Operation | None:
    """Return what a scheduler's node does; None for nodes that only name a result of another."""
    inner = getattr(node, "node", None)
    layout = getattr(inner, "layout", None)
    shape = tuple(int(size) for size in layout.size) if hasattr(layout, "dtype") else ()
    kind = type(node).__name__
    if kind in ("SchedulerNode", "FusedSchedulerNode"):
        return Operation("triton", count_accessed_bytes(node), 0, shape)
    if kind != "ExternKernelSchedulerNode":
        return None if kind == "NopKernelSchedulerNode" else Operation(kind, 0, 0)
    if type(inner).__name__ == "MultiOutput":
        return None
    if type(inner).__name__ == "UserDefinedTritonKernel":
        return describe_own_kernel(inner)
    name = getattr(inner, "python_kernel_name", None) or type(inner).__name__
    moved = int(node.get_read_write_buffers_sizes())
    if "attn" in name or "attention" in name:
        return describe_attention(inner, name, moved)
    return Operation(name.removeprefix("extern_kernels."), moved, int(node.estimate_flops() or 0), shape)


def count_accessed_bytes(node: Any) -> int:
    """Return the bytes of a kernel's buffers, of those that it reads or writes in part that part."""
    from torch._inductor.virtualized import V

    total = 0
    for name, count in node.get_read_write_buffer_accesses(include_reads=True, include_writes=True).items():
        accesses = [each for each in (*node.read_writes.reads, *node.read_writes.writes) if each.name == name]
        if all(hasattr(each, "get_numel") for each in accesses):
            numbers = sum(int(each.get_numel()) for each in accesses)
            count = min(count, numbers * V.graph.get_dtype(name).itemsize)
        total += int(count)
    return total


def describe_own_kernel(inner: Any) -> Operation:
    """Return the operation of a kernel of the recurrence, which reads or writes each of its tensors once."""
    tensors = [value for value in inner.kwargs.values() if hasattr(value, "get_size")]
    sizes = [tuple(int(size) for size in tensor.get_size()) for tensor in tensors]
    moved = sum(math.prod(size) * tensor.get_dtype().itemsize for size, tensor in zip(sizes, tensors, strict=True))
    return Operation("recurrence", moved, 0, max(sizes, key=math.prod))


def describe_attention(inner: Any, name: str, moved: int) -> Operation:
    """Return the operation of an attention kernel. FLOPs count pairs of positions within causality and window."""
    is_backward = "backward" in name
    first = 1 if is_backward else 0  # the gradient comes before query, key and value
    query = tuple(int(size) for size in inner.inputs[first].get_size())
    if "varlen" in name:
        length, left = inner.constant_args[0], inner.constant_args[4]  # max_q, max_k, is_causal, scale, window_size
        heads, size, rows = query[1], query[2], query[0] // length
    else:
        rows, heads, length, size = query
        left = -1
    window = length if left < 0 else left + 1
    pairs = sum(min(position, window) for position in range(1, length + 1))
    flops = 4 * rows * heads * size * pairs
    kind = "attention backward" if is_backward else "attention"
    label = "varlen" if "varlen" in name else "sdpa"
    factor = 5 if is_backward else 2  # products: 2 forward; 5 backward, one of which recomputes the scores
    return Operation(f"{label} {kind}", moved, flops * factor // 2, query, None if left < 0 else window)
