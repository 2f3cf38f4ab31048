"""Chained stages equal the whole model and train like it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.model_shapes import GPT2
from tests.support.swarm_chain import (
    SHAPES,
    RepeatedStep,
    build_stages,
    build_tiny_config,
    run_backward,
    run_forward,
    train_stages,
)
from trainer.data.dataset import Dataset
from trainer.swarm.comparison import iter_losses
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.partitions import PartitionError, balance_blocks
from trainer.swarm.stage import Stage, StateError, build_model, partition_blocks


@pytest.fixture(scope="module")
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)


@pytest.mark.parametrize("arch", SHAPES)
def test_stages_partition_the_whole_models_parameters(dataset: Dataset, arch: str) -> None:
    config = build_tiny_config(dataset, arch, stages=3)
    whole = dict(build_model(config).named_parameters())
    stages = build_stages(config)
    parts = [(name, p) for stage in stages for name, p in stage.parameters.items()]
    assert sorted(name for name, _ in parts) == sorted(whole)
    assert all(torch.equal(parameter, whole[name]) for name, parameter in parts)


@pytest.mark.parametrize("arch", SHAPES)
@pytest.mark.parametrize("stages", [1, 3])
def test_chained_stages_train_like_the_whole_model(dataset: Dataset, arch: str, stages: int) -> None:
    config = build_tiny_config(dataset, arch, stages=stages)
    batches = Batches(dataset, config)
    losses = list(train_stages(build_stages(config), batches, 4))
    expected = list(iter_losses(config, batches, 4))
    assert losses == pytest.approx(expected, abs=1e-6)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("option", ["x0_lambdas", "backout", "value_embeddings", "document_mask", "softcap"])
def test_gpt_options_train_like_the_whole_model(dataset: Dataset, option: str) -> None:
    base = build_tiny_config(dataset, stages=4)
    value = {"document_mask": True, "softcap": 0.0}.get(option, False)
    config = build_tiny_config(
        dataset, stages=4, model={**base.model, option: value, "end_of_text": dataset.tokenizer.end_of_text}
    )
    batches = Batches(dataset, config)
    losses = list(train_stages(build_stages(config), batches, 3))
    assert losses == pytest.approx(list(iter_losses(config, batches, 3)), abs=1e-6)


def test_bf16_loss_is_close_and_sums_are_fp32(dataset: Dataset) -> None:
    config = build_tiny_config(dataset, precision="bf16")
    batches = Batches(dataset, config)
    stages = build_stages(config)
    losses = list(train_stages(stages, batches, 3))
    assert losses == pytest.approx(list(iter_losses(build_tiny_config(dataset), batches, 3)), rel=0.01)
    assert {stage.gradient_sum.dtype for stage in stages} == {torch.float32}
    assert all(tensor.dtype == torch.float32 for stage in stages for tensor in stage.copy_state().values())


def test_stages_without_learning_compute_nats_and_input_gradients(dataset: Dataset) -> None:
    config = build_tiny_config(dataset)
    stages, whole = build_stages(config), build_model(config).eval()
    tokens, targets = next(Batches(dataset, config).iter_dev(2))
    hidden = stages[0].forward(tokens, None, learn=False).output
    nats = torch.nn.functional.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten(), reduction="none")
    assert torch.allclose(stages[1].compute_nats(tokens, hidden, targets).flatten(), nats, atol=1e-5)
    first, last = run_forward(stages, Batches(dataset, config), 0, 0)
    gradient, gradients = stages[1].backward(last, learn=False)
    assert gradients == []
    assert gradient is not None
    assert gradient.shape == first.output.shape
    assert stages[0].backward(first, gradient, learn=False) == (None, [])


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        *((arch, {}) for arch in SHAPES),
        ("gpt", {"document_mask": True}),
        ("gpt", {"windows": "SL", "short_window": 3}),
        ("litgpt", {"sliding_window_size": 4, "sliding_window_indices": [1, 0, 1]}),
    ],
)
def test_cached_logits_equal_the_whole_models(dataset: Dataset, arch: str, changes: dict[str, Any]) -> None:
    model = dict(build_tiny_config(dataset, arch).model)
    if arch == "litgpt":
        model["fields"] = model["fields"] | changes
    elif changes:
        model |= {**changes, "end_of_text": dataset.tokenizer.end_of_text}
    check_cached_logits(dataset, build_tiny_config(dataset, arch, stages=3, model=model))


@torch.no_grad()
def check_cached_logits(dataset: Dataset, config: SwarmConfig) -> None:
    """Read a row in pieces, with random weights, since some parameters start at zero."""
    stages, whole = build_stages(config), build_model(config).eval()
    rng = torch.Generator().manual_seed(1)
    for name, parameter in whole.named_parameters():
        parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=0.05)
        for stage in stages:
            if name in stage.parameters:
                stage.parameters[name].copy_(parameter)
    tokens, _ = next(Batches(dataset, config).iter_dev(2))
    expected, caches = whole(tokens), [stage.build_cache() for stage in stages]
    for first, last in itertools.pairwise((0, 5, 6, 7, 11, 16)):
        hidden = None
        for stage, cache in zip(stages, caches, strict=True):
            hidden = stage.advance(tokens[:, first:last], hidden, cache)
        assert hidden is not None
        assert torch.allclose(hidden, expected[:, last - 1].float(), atol=1e-4)


def test_stage_with_loaded_state_continues_like_its_peer(dataset: Dataset) -> None:
    config = build_tiny_config(dataset)
    batches, stages = Batches(dataset, config), build_stages(config)
    list(train_stages(stages, batches, 2))
    newcomer = Stage(config, 1)
    untrained, (first, last) = newcomer.compute_digest(), (stage.copy_state() for stage in stages)
    with pytest.raises(StateError, match="has no weight"):
        newcomer.load_state(first, 3)
    with pytest.raises(StateError, match="another stage's"):
        newcomer.load_state({**first, **last}, 3)
    assert (newcomer.compute_digest(), newcomer.version) == (untrained, 0)
    newcomer.load_state(last, stages[1].version)
    assert newcomer.compute_digest() == stages[1].compute_digest() != untrained
    expected = list(train_stages(stages, batches, 2))
    stages[0].load_state(first, 2)
    assert list(train_stages([stages[0], newcomer], batches, 2)) == expected
    assert newcomer.compute_digest() == stages[1].compute_digest()


def test_cleared_sum_leaves_losses_unchanged(dataset: Dataset) -> None:
    config = build_tiny_config(dataset)
    batches, stages = Batches(dataset, config), build_stages(config)
    run_backward(stages, run_forward(stages, batches, 0, 3))
    assert stages[0].gradient_sum.any()
    for stage in stages:
        stage.clear_gradients()
    assert list(train_stages(stages, batches, 2)) == list(iter_losses(config, batches, 2))


def test_repeated_step_is_memorized(dataset: Dataset) -> None:
    config = build_tiny_config(dataset, steps=100, learning_rate=0.02, micro_batches=1, micro_batch=2, weight_decay=0.0)
    losses = list(train_stages(build_stages(config), RepeatedStep(dataset, config), 100))
    assert losses[-1] < 0.02 < losses[0]


def test_unpartitionable_model_is_refused_with_reason(dataset: Dataset) -> None:
    for arch, change, reason in (
        ("nanogpt", {"tied_head": True}, "cannot share a tied head"),
        ("gpt", {"memory_rows": 50}, "memory_rows"),
    ):
        base = build_tiny_config(dataset, arch)
        with pytest.raises(PartitionError, match=reason):
            Stage(build_tiny_config(dataset, arch, model=base.model | change), 0)
    with pytest.raises(PartitionError, match="4 blocks cannot be partitioned into 5"):
        Stage(build_tiny_config(dataset, stages=5), 0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 20), st.data())
def test_balanced_blocks_minimize_the_largest_cost(costs: list[int], head: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    spans = balance_blocks(tuple(costs), head, stages)
    assert [block for span in spans for block in span] == list(range(len(costs)))
    assert all(spans)

    def find_costliest(cut: list[int]) -> int:
        ends = [0, *cut, len(costs)]
        sums = [sum(costs[a:b]) for a, b in itertools.pairwise(ends)]
        return max([*sums[:-1], sums[-1] + head])

    every = (find_costliest(list(cut)) for cut in itertools.combinations(range(1, len(costs)), stages - 1))
    assert find_costliest([span.start for span in spans[1:]]) == min(every)


def test_gpt2_is_partitioned_evenly_with_its_head(dataset: Dataset) -> None:
    """Each stage has 64 M of the parameters that a token is multiplied by. The head counts more than five blocks."""
    sizes = {"vocabulary_size": 50257, "sequence_length": 1024, **GPT2}
    config = build_tiny_config(dataset, "litgpt", model=sizes, sequence_length=1024)
    with torch.device("meta"):
        whole = build_model(config)
    assert sum(p.numel() for p in whole.parameters()) == 124_439_808 - 1024 * 768 + 50_304 * 768 + 47 * 768
    assert [len(span) for span in partition_blocks(config, whole)] == [9, 3]
