"""The report of a traced step: plain values for JSON."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.cuda_predicted.recording import CompiledGraph
from benchmarks.cuda_predicted.trace import TracedStep

GRAPHS = ("features", "features backward", "loss", "loss backward")


def build_report(step: TracedStep) -> dict[str, Any]:
    return {
        "rows": step.resolved.micro_batch,
        "depth": step.resolved.depth,
        "width": step.width,
        "parameters": step.parameters,
        "feature_dtype": step.feature_dtype,
        "loss_chunks": step.loss_chunks,
        "peak_bytes": max(graph.peak_bytes for graph in step.graphs),
        "bf16_tables": step.tables,
        "table_step_gigabytes": sum(graph.bytes for graph in step.table_steps) / 1e9,
        "muon_gigabytes": sum(graph.bytes for graph in step.muon) / 1e9,
        "muon_tera_flops": sum(graph.flops for graph in step.muon) / 1e12,
        "gigabytes_moved": sum(graph.bytes for graph in step.graphs) / 1e9,
        "product_flops_per_token": step.product_flops_per_token,
        "counted_flops_per_token": step.counted_flops_per_token,
        "graphs": {
            name: describe_graph(graph, step.stream_size) for name, graph in zip(GRAPHS, step.graphs, strict=True)
        },
    }


def describe_graph(graph: CompiledGraph, stream_size: int) -> dict[str, Any]:
    """`fp32_streams`: shapes in fp32 that are as large as the residual stream."""
    large = [shape for dtype, shape in graph.buffers if dtype == "float32" and math.prod(shape) >= stream_size]
    return {
        "operations": len(graph.operations),
        "triton_kernels": len(graph.kernels),
        "products": sum(operation.is_product for operation in graph.operations),
        "recurrences": graph.count("recurrence"),
        "fp8_products": sum("_scaled_mm" in operation.kind for operation in graph.operations),
        "gigabytes": graph.bytes / 1e9,
        "tera_flops": graph.flops / 1e12,
        "peak_bytes": graph.peak_bytes,
        "saved_bytes": graph.saved_bytes,
        "attention": [
            [operation.kind, operation.window] for operation in graph.operations if "attention" in operation.kind
        ],
        "fp32_streams": large,
    }
