"""A training step on an H100, predicted without one: it compiles, and costs the bytes and kernels that it did.

`make test-cuda` runs these. A change that breaks a graph, moves more bytes or keeps more memory fails here. After one
that moves fewer, take over the new figures. Depth 24 is measured by hand (benchmarks/results/gpu.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from benchmarks.cuda_predicted.fake_h100 import find_missing_program
from tests.support.paths import REPOSITORY
from trainer.accounting.training_size import COMPILED_ACTIVATIONS
from trainer.graph.counting import measure_costs
from trainer.graph.initialization import CostMeter
from trainer.ops.recurrence import compute_recurrence

MISSING = find_missing_program()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed: `make test-cuda` installs triton"),
]
LENGTH, DEPTH, WIDTH, RWKV5_DEPTH = 2048, 4, 1536, 2
GPT_SIZE = ("--model.depth", str(DEPTH), "--model.width", str(WIDTH), "--model.heads", "12")
FLAGS = {
    "gpt": (*GPT_SIZE, "--cubins"),
    "smear": GPT_SIZE,
    "litgpt": ("--model.depth", "2", "--cubins"),
    "rwkv5": ("--model.depth", str(RWKV5_DEPTH), "--cubins"),
}
MEMORY_FLAGS = (*("--model.depth", "2", "--model.width", "512", "--model.heads", "4"), "--model.memory_rows", "65536")
PINNED = {  # operations, Triton kernels, gigabytes
    "features": (81, 17, 20.567),
    "features backward": (128, 22, 35.328),  # with the embeddings' gradients rounded to bf16
    "loss": (4, 3, 1.250),
    "loss backward": (4, 2, 2.450),
}
SDPA, WINDOWED = ("sdpa attention", None), ("varlen attention", LENGTH // 4)


def predict(arch: str, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the prediction of an architecture's step. `flags`: instead of its own."""
    return run_prediction(arch, flags or FLAGS[arch])


@lru_cache
def run_prediction(arch: str, flags: tuple[str, ...]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.cuda_predicted", arch, *flags]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("arch", [pytest.param("gpt", marks=pytest.mark.check), *list(FLAGS)[1:]])
def test_training_traces_as_one_graph_both_ways(arch: str) -> None:
    graphs = predict(arch)["graphs"]
    assert list(graphs) == list(PINNED)
    assert all(graph["products"] for graph in graphs.values())


@pytest.mark.check
def test_gpt_step_costs_the_pinned_kernels_and_bytes() -> None:
    report = predict("gpt")
    for name, (operations, kernels, gigabytes) in PINNED.items():
        graph = report["graphs"][name]
        assert (graph["operations"], graph["triton_kernels"]) == (operations, kernels)
        assert graph["gigabytes"] == pytest.approx(gigabytes, rel=2e-3)
    assert report["bf16_tables"] == 1 + DEPTH // 2
    assert report["table_step_gigabytes"] == pytest.approx(22 * 32_768 * WIDTH / 1e9, rel=0.01), "22 bytes a parameter"
    assert report["peak_bytes"] == pytest.approx(9.032e9, rel=5e-3)


def test_memory_formula_bounds_planned_peak() -> None:
    report = predict("gpt")
    block, outside = COMPILED_ACTIVATIONS["gpt"]
    computed = (DEPTH * block + outside) * report["rows"] * LENGTH * WIDTH
    assert report["peak_bytes"] <= computed <= 1.1 * report["peak_bytes"]


@pytest.mark.parametrize("arch", ["gpt", "smear"])
def test_stream_is_bf16_and_each_block_takes_its_attention_path(arch: str) -> None:
    report = predict(arch)
    assert report["feature_dtype"] == "bfloat16"
    graphs = report["graphs"]
    assert [report["rows"], LENGTH, WIDTH] not in graphs["features"]["fp32_streams"]
    forward = [tuple(call) for call in graphs["features"]["attention"]]
    assert forward == [WINDOWED] * (DEPTH - 1) + [SDPA]
    backward = [(name.removesuffix(" backward"), window) for name, window in graphs["features backward"]["attention"]]
    assert backward == forward[::-1]


def count_recurrence_flops() -> float:
    """Return the FLOPs a token, forward and backward, of the products of a block's recurrence in torch, by which the
    kernels are counted."""
    heads = RWKV5_DEPTH  # as many as blocks
    shapes = [*[(1, heads, LENGTH, 64)] * 3, (heads, 64), (heads, 64), (1, heads, 64, 64)]
    leaves = [torch.empty(shape, device="meta", requires_grad=number < 5) for number, shape in enumerate(shapes)]
    with measure_costs(meter := CostMeter()):
        compute_recurrence(*leaves)[0].sum().backward()
    return meter.total.product_flops / LENGTH


@pytest.mark.parametrize(
    ("arch", "attention_width", "outer"),
    # gpt: the gradient of the smear gate is an outer product, which the compiler multiplies point by point
    [("gpt", DEPTH * WIDTH, 2 * 32), ("smear", DEPTH * WIDTH, 0)],
)
def test_flops_of_compiled_products_equal_the_count(arch: str, attention_width: int, outer: int) -> None:
    report = predict(arch)
    attention = 3 * 4 * LENGTH * attention_width  # forward and twice that backward; counted over all pairs of positions
    assert report["product_flops_per_token"] + attention + outer == report["counted_flops_per_token"]


def test_rwkv5_computes_recurrences_by_kernels_and_other_products_as_counted() -> None:
    report = predict("rwkv5")
    found = {name: graph["recurrences"] for name, graph in report["graphs"].items()}
    both = 2 * RWKV5_DEPTH
    assert found == {"features": both, "features backward": both, "loss": 0, "loss backward": 0}
    recurrences = RWKV5_DEPTH * count_recurrence_flops()
    assert report["product_flops_per_token"] + recurrences == pytest.approx(report["counted_flops_per_token"], rel=1e-3)


def test_gpt_with_memory_is_one_graph_both_ways_on_sm_90() -> None:
    report = predict("gpt", (*MEMORY_FLAGS, "--cubins"))
    assert list(report["graphs"]) == list(PINNED)
    assert min(report["programs"].values()) >= 1
    assert [report["rows"], LENGTH, 512] not in report["graphs"]["features"]["fp32_streams"]
    gates = 2 * 32 + 3 * 2 * 512  # gradients that are outer products: of the smear's gate and of the memory's three
    attention = 3 * 4 * LENGTH * 2 * 512
    assert report["product_flops_per_token"] + attention + gates == report["counted_flops_per_token"]


@pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed: `make test-cuda` installs it")
def test_products_of_blocks_and_head_are_fp8_both_ways() -> None:
    graphs = predict("gpt", (*GPT_SIZE, "--train.precision", "fp8"))["graphs"]
    bf16 = predict("gpt")["graphs"]
    for name, factor in (("features", 1), ("features backward", 2)):
        assert graphs[name]["fp8_products"] == 6 * DEPTH * factor
        assert graphs[name]["products"] == bf16[name]["products"]
    assert (graphs["loss"]["fp8_products"], graphs["loss backward"]["fp8_products"]) == (1, 2)
    assert bf16["features"]["fp8_products"] == 0


@pytest.mark.parametrize("arch", [arch for arch, flags in FLAGS.items() if "--cubins" in flags])
def test_each_kernel_compiles_for_sm_90(arch: str) -> None:
    report = predict(arch)
    assert len(report["programs"]) >= 19
    assert all(number >= 1 for number in report["programs"].values())
