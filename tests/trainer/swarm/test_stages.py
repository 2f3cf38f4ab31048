"""Stages one behind another are the whole model, and train as it does."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.swarm_chain import SHAPES, all_stages, ascend, chained, descend, tiny
from trainer.data.dataset import Dataset
from trainer.swarm import reference
from trainer.swarm.cuts import CutError, share
from trainer.swarm.data import Batches, SameBatch
from trainer.swarm.shapes import GPT2
from trainer.swarm.stage import Stage, StateError, spans, whole_model


@pytest.fixture(scope="module")
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)


@pytest.mark.parametrize("arch", SHAPES)
def test_the_stages_have_the_whole_models_parameters_and_every_one_once(dataset: Dataset, arch: str) -> None:
    config = tiny(dataset, arch, stages=3)
    whole = dict(whole_model(config).named_parameters())
    parts = [(name, p) for stage in all_stages(config) for name, p in stage.parameters.items()]
    assert sorted(name for name, _ in parts) == sorted(whole)
    assert all(torch.equal(parameter, whole[name]) for name, parameter in parts)


@pytest.mark.parametrize("arch", SHAPES)
@pytest.mark.parametrize("stages", [1, 3])
def test_stages_train_as_the_whole_model_does(dataset: Dataset, arch: str, stages: int) -> None:
    config = tiny(dataset, arch, stages=stages)
    batches = Batches(dataset, config)
    found = list(chained(all_stages(config), batches, 4))
    wanted = list(reference.losses(config, batches, 4))
    assert found == pytest.approx(wanted, abs=1e-6)
    assert found[-1] < found[0]


@pytest.mark.parametrize("option", ["x0_lambdas", "backout", "value_embeddings", "document_mask", "softcap"])
def test_each_of_the_baselines_options_can_be_cut_off_and_on(dataset: Dataset, option: str) -> None:
    base = tiny(dataset, stages=4)
    value = {"document_mask": True, "softcap": 0.0}.get(option, False)
    config = tiny(dataset, stages=4, model={**base.model, option: value, "end_of_text": dataset.tokenizer.end_of_text})
    batches = Batches(dataset, config)
    found = list(chained(all_stages(config), batches, 3))
    assert found == pytest.approx(list(reference.losses(config, batches, 3)), abs=1e-6)


def test_what_is_computed_again_is_the_same(dataset: Dataset) -> None:
    config = tiny(dataset)
    batches = Batches(dataset, config)
    again = all_stages(config, recompute=True)
    assert descend(again, batches, 0, 0)[0].graph is None
    assert list(chained(again, batches, 3)) == list(chained(all_stages(config), batches, 3))


def test_bf16_is_near_and_its_sums_are_fp32(dataset: Dataset) -> None:
    config = tiny(dataset, precision="bf16")
    batches = Batches(dataset, config)
    stages = all_stages(config)
    found = list(chained(stages, batches, 3))
    assert found == pytest.approx(list(reference.losses(tiny(dataset), batches, 3)), rel=0.01)
    assert {stage.total.dtype for stage in stages} == {torch.float32}
    assert all(tensor.dtype == torch.float32 for stage in stages for tensor in stage.state().values())


def test_without_learning_only_the_way_up_is_computed(dataset: Dataset) -> None:
    config = tiny(dataset)
    stages = all_stages(config)
    first, last = descend(stages, Batches(dataset, config), 0, 0)
    gradient, mine = stages[1].backward(last, learn=False)
    assert mine == []
    assert gradient is not None
    assert gradient.shape == first.output.shape
    assert stages[0].backward(first, gradient, learn=False) == (None, [])


def test_evaluation_and_sampling_go_the_same_way(dataset: Dataset) -> None:
    config = tiny(dataset, stages=3)
    stages, whole = all_stages(config), whole_model(config).eval()
    tokens, targets = next(Batches(dataset, config).dev(2))
    hidden = None
    for stage in stages[:-1]:
        hidden = stage.forward(tokens, hidden, learn=False).output
    logits = whole(tokens)
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    assert torch.allclose(stages[-1].nats(tokens, hidden, targets).flatten(), nats, atol=1e-5)
    assert torch.allclose(stages[-1].next_logits(tokens, hidden), logits[:, -1], atol=1e-5)


def test_a_newcomer_with_a_peers_state_goes_on_as_the_peer(dataset: Dataset) -> None:
    config = tiny(dataset)
    batches, stages = Batches(dataset, config), all_stages(config)
    list(chained(stages, batches, 2))
    newcomer = Stage(config, 1)
    assert newcomer.digest() != stages[1].digest()
    newcomer.load(stages[1].state(), stages[1].version)
    assert newcomer.digest() == stages[1].digest()
    before = [stages[0].state(), stages[1].state()]
    wanted = list(chained(stages, batches, 2))
    for stage, state in zip((stages[0], newcomer), before, strict=True):
        stage.load(state, 2)
    assert list(chained([stages[0], newcomer], batches, 2)) == wanted
    assert newcomer.digest() == stages[1].digest()


def test_anothers_state_is_refused_and_nothing_is_changed(dataset: Dataset) -> None:
    config = tiny(dataset)
    first, last = all_stages(config)
    before = first.digest()
    with pytest.raises(StateError, match="has no weight"):
        first.load(last.state(), 3)
    with pytest.raises(StateError, match="another stage's"):
        first.load({**first.state(), **last.state()}, 3)
    assert (first.digest(), first.version) == (before, 0)


def test_a_cleared_sum_is_as_if_nothing_had_been_added(dataset: Dataset) -> None:
    config = tiny(dataset)
    batches, stages = Batches(dataset, config), all_stages(config)
    ascend(stages, descend(stages, batches, 0, 3))
    assert stages[0].total.any()
    for stage in stages:
        stage.clear()
    assert list(chained(stages, batches, 2)) == list(reference.losses(config, batches, 2))


def test_one_batch_over_and_over_is_known_by_heart(dataset: Dataset) -> None:
    config = tiny(dataset, steps=100, learning_rate=0.02, micro_batches=1, micro_batch=2, weight_decay=0.0)
    losses = list(chained(all_stages(config), SameBatch(dataset, config), 100))
    assert losses[-1] < 0.02 < losses[0]


def test_what_cannot_be_cut_says_why(dataset: Dataset) -> None:
    base = tiny(dataset)
    with pytest.raises(CutError, match="at the other end"):
        Stage(tiny(dataset, model={**base.model, "tied_head": True}), 0)
    with pytest.raises(CutError, match="nanogpt cannot be cut"):
        Stage(base.model_copy(update={"arch": "nanogpt", "model": {**base.model}}), 0)
    with pytest.raises(CutError, match="4 blocks cannot be cut into 5"):
        Stage(tiny(dataset, stages=5), 0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 20), st.data())
def test_blocks_are_shared_so_that_the_dearest_stage_costs_least(
    costs: list[int], head: int, data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    found = share(tuple(costs), head, stages)
    assert [block for span in found for block in span] == list(range(len(costs)))
    assert all(found)

    def dearest(cut: list[int]) -> int:
        ends = [0, *cut, len(costs)]
        sums = [sum(costs[a:b]) for a, b in itertools.pairwise(ends)]
        return max([*sums[:-1], sums[-1] + head])

    every = (dearest(list(cut)) for cut in itertools.combinations(range(1, len(costs)), stages - 1))
    assert dearest([span.start for span in found[1:]]) == min(every)


def test_gpt_2_is_cut_where_both_stages_cost_as_much(dataset: Dataset) -> None:
    """Two of 64 M parameters that a token is multiplied by: the head is worth more than five blocks."""
    sizes = {"vocabulary_size": 50257, "sequence_length": 1024, **GPT2}
    config = tiny(dataset, "litgpt", model=sizes, sequence_length=1024)
    with torch.device("meta"):
        whole = whole_model(config)
    assert sum(p.numel() for p in whole.parameters()) == 124_439_808 - 1024 * 768 + 50_304 * 768 + 47 * 768
    assert [len(span) for span in spans(config, whole)] == [9, 3]
