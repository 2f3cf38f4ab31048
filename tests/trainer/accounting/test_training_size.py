"""Sizes and times computed from a configuration, against real models: parameters, checkpoints, memory, a score."""

from __future__ import annotations

import dataclasses
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.support.traced_models import trace
from trainer.accounting import training_size
from trainer.accounting.scoring_time import SLOWEST_SCORERS, ScoringWork, choose_slowest_scorer, compute_pass_flops
from trainer.accounting.training_size import compute_model_size, estimate_memory, explain_too_large
from trainer.checkpoint.store import write_checkpoint
from trainer.config.model_config import convert_field
from trainer.graph.summary import describe_traced
from trainer.models import load_architecture
from trainer.optim.optimizers import assign_parameters, build_optimizers
from trainer.training.objective import Objective

CHUNK_LOGITS_CPU = (2**22, 2**22)


@pytest.mark.parametrize(
    ("arch", "depth", "vocabulary"),
    [
        *(("gpt", depth, 32_768) for depth in (2, 9, 24)),
        ("gpt", 4, 50_257),
        ("rwkv5-tiny", 4, 512),
        ("rwkv5", 5, 512),
        ("rwkv5-1b5", 24, 65_536),
        ("rwkv5-7b", 32, 65_536),
    ],
)
def test_computed_size_equals_model(arch: str, depth: int, vocabulary: int) -> None:
    module = load_architecture(arch)
    config = module.Config.sized(depth, vocabulary, 1024)
    with torch.device("meta"):
        model = module.Model(config)
    size = compute_model_size(
        {"arch": arch, "model": {} if arch.startswith("rwkv5-") else {"depth": depth}}, "", vocabulary
    )
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    groups = assign_parameters(model, module.recipe(config))
    assert size.matrices == sum(p.numel() for group, ps in groups if group.optimizer == "muon" for p in ps.values())
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.repeated_blocks()]
    assert size.largest_block == pytest.approx(max(blocks), rel=7e-4), "RWKV-5's first has one more norm"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"memory_orders": "3", "memory_blocks": "none"},
        {"memory_width": 16, "memory_blocks": "0,3"},
        {"memory_orders": 2, "memory_blocks": 1},  # as the command line reads numbers
    ],
    ids=["whole rows", "embedding alone", "slices", "numbers"],
)
def test_computed_size_of_a_memory_equals_model(fields: dict[str, object]) -> None:
    module, fields = load_architecture("gpt"), {"memory_rows": 10_000, **fields}
    sized = module.Config.sized(4, 512, 1024)
    options = {name: convert_field(name, value, getattr(sized, name)) for name, value in fields.items()}
    config = dataclasses.replace(sized, **options)
    with torch.device("meta"):
        model = module.Model(config)
    size = compute_model_size({"model": {"depth": 4, **fields}}, vocabulary_size=512)
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    groups = assign_parameters(model, module.recipe(config))
    assert size.matrices == sum(p.numel() for group, ps in groups if group.optimizer == "muon" for p in ps.values())
    assert size.largest_block == max(sum(p.numel() for p in block.parameters()) for block in model.repeated_blocks())
    assert size.memory == model.memory.table.numel()
    assert size.gradient_bytes == 4 * (size.parameters - size.memory)
    rows = build_optimizers(model, module.recipe(config), "fp32")[-1]
    assert size.memory_numbers == rows.state[model.memory.table]["square"].numel()
    parts = estimate_memory(size, {"train": {"micro_batch": 2, "batch": 8, "sequence_length": 32}})
    assert parts["row gradients"] == 5 * 4 * 8 * 32 * model.memory.table[0].numel()


def test_model_too_large_for_the_cards_is_explained_with_numbers() -> None:
    long_run = {"devices": 8, "train": {"strategy": "zero2"}}
    excess = explain_too_large({"arch": "rwkv5", **long_run}, "627B-tokens", 80 * 10**9, 65_536)
    assert "rwkv5 without a size gets depth 102" in excess, excess
    assert "57.4 billion parameters" in excess
    assert "115 GB on each of the 8 GPUs, with 80 GB" in excess
    assert "rwkv5-7b" in excess
    assert not explain_too_large({"arch": "rwkv5-7b", **long_run}, "627B-tokens", 80 * 10**9, 65_536)
    assert "120 GB on the GPU, with 24 GB" in explain_too_large({"arch": "rwkv5-7b"}, "1h", 24 * 10**9, 65_536)
    assert not explain_too_large({"arch": "litgpt"}, "627B-tokens", 24 * 10**9), "no formula covers it"


def read_memory_events(profiler: profile, folder: Path) -> list[dict[str, Any]]:
    """Return the allocations and releases that were profiled, in order."""
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    found = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
    return [event["args"] for event in found]


def train_two_steps(depth: int, length: int, rows: int, vocabulary: int, folder: Path) -> int:
    """Train the baseline on a CPU; return the largest number of bytes that were allocated. Writes a checkpoint."""
    module = load_architecture("gpt")
    config = module.Config.sized(depth, vocabulary, length)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model = module.Model(config)
        optimizers = build_optimizers(model, module.recipe(config), "fp32")
        objective, tokens = Objective(model), torch.randint(0, vocabulary, (rows, length + 1))
        for _ in range(2):  # the first one allocates the optimizer state after its peak
            objective(tokens[:, :-1], tokens[:, 1:]).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            gc.collect()
    write_checkpoint(folder / "checkpoint", model, optimizers, {"step": 2})
    return max(event["Total Allocated"] for event in read_memory_events(profiler, folder))


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "length", "rows", "vocabulary"), [(2, 128, 8, 512), (3, 256, 4, 4096)])
def test_computed_memory_bounds_measured_peak(
    depth: int, length: int, rows: int, vocabulary: int, tmp_path: Path
) -> None:
    measured = train_two_steps(depth, length, rows, vocabulary, tmp_path)
    config = {"train": {"micro_batch": rows, "sequence_length": length, "precision": "fp32"}}
    size = compute_model_size({"model": {"depth": depth}}, vocabulary_size=vocabulary)
    computed = sum(estimate_memory(size, config, CHUNK_LOGITS_CPU, reserved_bytes=0).values())
    assert measured <= computed <= 1.25 * measured
    stored = sum(file.stat().st_size for file in (tmp_path / "checkpoint").iterdir())
    assert size.checkpoint_bytes <= stored <= 1.02 * size.checkpoint_bytes + 200_000


def test_sharding_divides_weights_gradients_and_optimizer_state() -> None:
    size = compute_model_size({"model": {"depth": 16}})
    train = {"micro_batch": 1, "sequence_length": 512}
    alone = estimate_memory(size, {"train": train})
    shared = estimate_memory(size, {"train": {**train, "strategy": "fsdp"}, "devices": 4})
    for part in ("weights", "gradients", "optimizer"):
        assert shared[part] == alone[part] // 4
    assert training_size.BF16 * size.parameters < shared["gathered"]


NIGHT = ScoringWork(3.6e12, 7200, 51_500)


def test_pass_flops_of_the_baseline_are_those_of_its_graph() -> None:
    summary = describe_traced(trace("gpt"))
    size = compute_model_size({"model": {"depth": 2}}, vocabulary_size=summary["vocabulary_size"])
    length = summary["sequence_length"]
    head = 2 * size.width * size.vocabulary_size
    counted = length * (summary["scoring_flops_per_token"] + head)
    assert compute_pass_flops(size, length) == pytest.approx(counted, rel=0.1)


def test_limit_covers_every_larger_card_and_unknown_ones_have_no_estimate() -> None:
    cards = {1e9: "RTX 4060 Ti", 2e10: "RTX 3090", 65e9: "A100"}
    assert {memory: choose_slowest_scorer(memory) for memory in cards} == cards
    limit = NIGHT.compute_limit(choose_slowest_scorer(13.9e9))
    for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090", "NVIDIA A100-SXM4-80GB", SLOWEST_SCORERS[0][1]):
        assert NIGHT.estimate_seconds(gpu) < limit
    assert NIGHT.estimate_seconds("Tesla T4") > limit
    assert NIGHT.estimate_seconds("Voodoo 2") is None
    in_fp32, suite = (ScoringWork(1e13, *passes) for passes in ((1e5, 0), (0, 1e5)))
    assert suite.compute_limit("A100") == in_fp32.compute_limit("A100") > 2 * suite.estimate_seconds("A100")


def test_night_on_a_cpu_takes_longer_than_its_limit_of_a_day() -> None:
    assert NIGHT.estimate_seconds("") > NIGHT.compute_limit("") == 86_400
    assert ScoringWork(1e9, 100, 0).compute_limit("") == 3600
