"""Slots of workers, and the limit of micro-batches in flight."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm.buffers import (
    MAX_SLOTS,
    MEMORY_SHARE,
    RESERVED_COPIES,
    count_slots,
    limit_in_flight,
    measure_micro_batch,
)
from trainer.swarm.config import SwarmConfig
from trainer.swarm.stage import Stage


@pytest.fixture
def config(dataset_folder: Path) -> SwarmConfig:
    return build_tiny_config(Dataset.open(dataset_folder))


@pytest.mark.parametrize("index", [0, 1])
def test_slots_follow_from_free_memory(config: SwarmConfig, index: int) -> None:
    stage = Stage(config, index)
    held = measure_micro_batch(stage)
    weights = 4 * RESERVED_COPIES * stage.gradient_sum.numel()
    assert count_slots(stage, int((weights + 5.5 * held) / MEMORY_SHARE)) == 5
    assert count_slots(stage, 0) == 1, "at least one"
    assert count_slots(stage, 2**60) == MAX_SLOTS
    assert 1 <= count_slots(stage) <= MAX_SLOTS


def test_twice_the_rows_occupy_twice_the_memory(config: SwarmConfig) -> None:
    one = measure_micro_batch(Stage(config, 0))
    two = measure_micro_batch(Stage(config.model_copy(update={"micro_batch": 2 * config.micro_batch}), 0))
    assert 1.7 * one < two < 2.1 * one


def test_measuring_does_not_change_the_stage(config: SwarmConfig) -> None:
    stage = Stage(config, 1)
    before = stage.compute_digest(stage.gradient_sum)
    count_slots(stage)
    assert stage.compute_digest(stage.gradient_sum) == before


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=6), st.integers(1, 50))
def test_in_flight_is_limited_by_the_fewest_slots(slots: list[list[int]], limit: int) -> None:
    count = limit_in_flight(slots, limit)
    assert 1 <= count <= limit
    assert count == 1 or all(sum(peers) >= count for peers in slots)
