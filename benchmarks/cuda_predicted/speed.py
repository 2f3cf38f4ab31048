"""Milliseconds of recorded operations on an H100, from assumed rates: each takes its bytes or its FLOPs, the longer.

The rates are assumptions, not measurements of this project; `python -m benchmarks.gpu` measures them where a GPU is.
Launches and what overlaps are not modelled, so use the figures to compare two versions of the trainer.
"""

from __future__ import annotations

from benchmarks.cuda_predicted.recording import CompiledGraph, Operation
from benchmarks.cuda_predicted.trace import TracedStep

BYTES_PER_SECOND = 3.0e12  # of an H100's 3.35e12 that a copy reaches
PRODUCT_FLOPS = 620e12  # per second, of bf16 products of a night's shapes
FP8_PRODUCT_FLOPS = 1100e12
TRITON_PRODUCT_FLOPS = 500e12  # of `trainer.ops.triton_mlp`; the library's products are faster
ATTENTION_FLOPS = {  # per second, at 12 heads of 128 and 2,048 tokens
    "sdpa attention": 458e12,
    "sdpa attention backward": 397e12,
    "varlen attention": 309e12,  # FA2
    "varlen attention backward": 267e12,
}
ACCUMULATION_BYTES = 12  # for each parameter: a gradient is added to the sum of the micro-batches before
ADAMW_BYTES = 28  # for each parameter: gradient, weight and two momenta, read; all but the gradient written
TABLE_BYTES = 22  # the same of a table in bf16, with the rest of its weights, as compiled
NORM_BYTES, CLIP_BYTES = 4, 8  # for each parameter: the norm of all gradients, and scaling them down to a limit


def estimate_seconds(operation: Operation) -> float:
    rate = {**ATTENTION_FLOPS, "triton product": TRITON_PRODUCT_FLOPS}.get(operation.kind, PRODUCT_FLOPS)
    if "_scaled_mm" in operation.kind:
        rate = FP8_PRODUCT_FLOPS
    return max(operation.bytes / BYTES_PER_SECOND, operation.flops / rate)


def estimate_graph_seconds(graph: CompiledGraph) -> float:
    return sum(estimate_seconds(operation) for operation in graph.operations)


def estimate_parts(step: TracedStep) -> dict[str, float]:
    """Return the seconds of an optimizer step by part."""
    micro_batches = step.resolved.batch // step.resolved.micro_batch
    features, loss = (sum(map(estimate_graph_seconds, graphs)) for graphs in (step.features, step.loss))
    fp32_gradients = step.parameters - step.table_parameters / 2  # as many numbers of 4 bytes
    optimizer_bytes = ADAMW_BYTES * step.adamw_parameters + TABLE_BYTES * step.table_parameters
    optimizer_bytes += (NORM_BYTES + CLIP_BYTES * step.is_clipped) * fp32_gradients
    return {
        "features": micro_batches * features,
        "loss": micro_batches * step.loss_chunks * loss,
        "accumulation": (micro_batches - 1) * fp32_gradients * ACCUMULATION_BYTES / BYTES_PER_SECOND,
        "optimizer": sum(map(estimate_graph_seconds, step.muon)) + optimizer_bytes / BYTES_PER_SECOND,
    }


def estimate_tokens_per_second(step: TracedStep) -> float:
    return step.resolved.tokens_per_step / sum(estimate_parts(step).values())
