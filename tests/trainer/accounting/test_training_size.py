"""Sizes computed from a configuration, against real models: parameters, checkpoints, measured peaks of memory."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from trainer.accounting import training_size
from trainer.accounting.training_size import compute_model_size, estimate_memory
from trainer.checkpoint.store import write_checkpoint
from trainer.models import load_architecture
from trainer.optim.optimizers import assign_parameters, build_optimizers
from trainer.training.objective import Objective

CHUNK_LOGITS_CPU = 2**22


@pytest.mark.parametrize(
    ("arch", "depth", "vocabulary"),
    [
        *(("gpt", depth, 32_768) for depth in (2, 6, 9, 16, 24, 25, 32)),
        ("gpt", 4, 50_257),
        ("rwkv5-430m", 24, 512),
        ("rwkv5-1b5", 24, 65_536),
        ("rwkv5-7b", 32, 65_536),
    ],
)
def test_computed_size_equals_model(arch: str, depth: int, vocabulary: int) -> None:
    module = load_architecture(arch)
    config = module.Config.sized(depth, vocabulary, 1024)
    with torch.device("meta"):
        model = module.Model(config)
    size = compute_model_size({"arch": arch, "model": {"depth": depth} if arch == "gpt" else {}}, "", vocabulary)
    assert size is not None
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    groups = assign_parameters(model, module.recipe(config))
    assert size.matrices == sum(p.numel() for group, ps in groups if group.optimizer == "muon" for p in ps.values())
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.repeated_blocks()]
    assert size.largest_block == pytest.approx(max(blocks), rel=2e-4), "RWKV-5's first has one more norm"


def test_unknown_sizes_have_no_computed_size() -> None:
    assert compute_model_size({"model": {"depth": 4, "width": 128}}) is None
    assert compute_model_size({"model": {"depth": 4}}, "litgpt") is None


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
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "length", "rows", "vocabulary"), [(2, 128, 8, 512), (3, 256, 4, 4096), (4, 256, 4, 2048)]
)
def test_computed_memory_bounds_measured_peak(
    depth: int, length: int, rows: int, vocabulary: int, tmp_path: Path
) -> None:
    measured = train_two_steps(depth, length, rows, vocabulary, tmp_path)
    config = {"train": {"micro_batch": rows, "sequence_length": length, "precision": "fp32"}}
    size = compute_model_size({"model": {"depth": depth}}, vocabulary_size=vocabulary)
    assert size is not None
    computed = sum(estimate_memory(size, config, CHUNK_LOGITS_CPU, reserved_bytes=0).values())
    assert measured <= computed <= 1.25 * measured
    stored = sum(file.stat().st_size for file in (tmp_path / "checkpoint").iterdir())
    assert size.checkpoint_bytes <= stored <= 1.02 * size.checkpoint_bytes + 200_000


def test_sharding_divides_weights_gradients_and_optimizer_state() -> None:
    size = compute_model_size({"model": {"depth": 16}})
    assert size is not None
    train = {"micro_batch": 1, "sequence_length": 512}
    alone = estimate_memory(size, {"train": train})
    shared = estimate_memory(size, {"train": {**train, "strategy": "fsdp"}, "devices": 4})
    for part in ("weights", "gradients", "optimizer"):
        assert shared[part] == alone[part] // 4
    assert training_size.BF16 * size.parameters < shared["gathered"]
