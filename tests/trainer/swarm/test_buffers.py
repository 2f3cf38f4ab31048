"""A worker's memory plan, and the limit of micro-batches in flight."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.swarm_chain import SHAPES, build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm.buffers import (
    CACHE_SHARE,
    MAX_CACHES,
    MAX_SLOTS,
    MEMORY_SHARE,
    RESERVED_COPIES,
    MemoryPlan,
    limit_in_flight,
    measure_micro_batch,
    measure_text,
    plan_memory,
)
from trainer.swarm.config import SwarmConfig
from trainer.swarm.stage import Stage


@pytest.fixture
def config(dataset_folder: Path) -> SwarmConfig:
    return build_tiny_config(Dataset.open(dataset_folder))


@pytest.mark.parametrize("index", [0, 1])
def test_slots_follow_from_free_memory(config: SwarmConfig, index: int) -> None:
    stage = Stage(config, index)
    held, text = measure_micro_batch(stage), measure_text(stage)
    weights = 4 * RESERVED_COPIES * stage.gradient_sum.numel()
    size = max(100.5 * held, (MAX_CACHES + 0.5) * text / CACHE_SHARE)
    before = stage.compute_digest(stage.gradient_sum)
    plan = plan_memory(stage, int((weights + size) / MEMORY_SHARE))
    assert stage.compute_digest(stage.gradient_sum) == before
    assert plan == MemoryPlan(int((size - MAX_CACHES * text) / held), MAX_CACHES)
    assert plan_memory(stage, int((weights + 2.5 * text / CACHE_SHARE) / MEMORY_SHARE)).texts == 2
    assert plan_memory(stage, 0) == MemoryPlan(1, 0), "at least one micro-batch"
    assert plan_memory(stage, 2**60) == MemoryPlan(MAX_SLOTS, MAX_CACHES)
    assert 1 <= plan_memory(stage).slots <= MAX_SLOTS


@pytest.mark.parametrize("arch", SHAPES)
def test_text_has_the_bytes_of_its_keys_or_states(dataset_folder: Path, arch: str) -> None:
    config = build_tiny_config(Dataset.open(dataset_folder), arch, stages=3)
    stage = Stage(config, 0)
    width = config.model["width"] if arch != "litgpt" else config.model["fields"]["n_embd"]
    numbers = width * 64 if arch == "rwkv5" else 2 * config.sequence_length * width  # a matrix for each head of 64
    least = 4 * numbers * len(stage.block_range)
    assert least <= measure_text(stage) < 1.5 * least + 4096


def test_twice_the_rows_occupy_twice_the_memory(config: SwarmConfig) -> None:
    one = measure_micro_batch(Stage(config, 0))
    two = measure_micro_batch(Stage(config.model_copy(update={"micro_batch": 2 * config.micro_batch}), 0))
    assert 1.7 * one < two < 2.1 * one


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=6), st.integers(1, 50))
def test_micro_batches_in_flight_are_limited_by_the_fewest_slots(slots: list[list[int]], limit: int) -> None:
    count = limit_in_flight(slots, limit)
    assert 1 <= count <= limit
    assert count == 1 or all(sum(peers) >= count for peers in slots)
