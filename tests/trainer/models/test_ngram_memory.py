"""The n-gram memory: its hashes, what the baseline adds, and its gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.gpt_models import END, T, V, build_random_model, sample_tokens
from trainer.models import gpt
from trainer.models.ngram_memory import GatedMemory, NGramMemory, fetch_rows
from trainer.ops.ngram_memory import ReadRowsFunction, get_row_gradients, hash_ngrams

ORDERS, ROWS = (1, 2, 3, 5), 1000


def hash_row(tokens: list[int], end_of_text: int | None = None) -> Tensor:
    return hash_ngrams(torch.tensor([tokens]), ROWS, ORDERS, 2, end_of_text)[0]


def test_hashes_depend_on_the_last_tokens_of_their_order_alone() -> None:
    rng = torch.Generator().manual_seed(0)
    for _ in range(30):
        tokens = torch.randint(V, (1, T), generator=rng)
        changed, place = tokens.clone(), int(torch.randint(T, (), generator=rng))
        changed[0, place] = (changed[0, place] + 1 + int(torch.randint(V - 1, (), generator=rng))) % V
        before, after = (hash_ngrams(each, 10**8, ORDERS, 2, None)[0] for each in (tokens, changed))
        for number, order in enumerate(order for order in ORDERS for _ in range(2)):
            differs = (before[:, number] != after[:, number]).nonzero().flatten().tolist()
            assert differs == list(range(place, min(place + order, T)))


def test_hashes_stay_within_documents_with_an_end_of_text() -> None:
    whole = hash_row([11, 12, 13, END, 14, 15, 16], END)
    assert torch.equal(whole[3:], hash_row([END, 14, 15, 16], END))
    assert not torch.equal(whole[3:], hash_row([11, 12, 13, END, 14, 15, 16])[3:])


def test_hashes_spread_over_their_own_rows_and_differ_in_collisions() -> None:
    pairs = torch.cartesian_prod(torch.arange(300), torch.arange(300))
    rows = hash_ngrams(pairs, 2**16, (2,), 2, None)[:, 1]
    assert rows[:, 0].max() < 2**16 <= rows[:, 1].min()
    # At random, 90,000 n-grams reach a share of 1 - exp(-1.373) = 0.747 of 65,536 rows. A grid spreads better.
    for column in rows.unbind(1):
        assert len(column.unique()) > 0.74 * 2**16
    both = rows[:, 0] * 2**17 + rows[:, 1]
    assert len(both.unique()) > 0.99 * len(both)


def compute_loss(memory: NGramMemory, tokens: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, memory.table[0].numel()).view(memory.table.shape[1:])
    return (memory(tokens) * weights + 0.1).square().sum()


def test_gradient_of_rows_equals_that_of_a_dense_table() -> None:
    tokens = sample_tokens(rows=3)
    table = torch.randn(80, 2, 3, generator=torch.Generator().manual_seed(0))
    memory, dense = NGramMemory(table.clone(), (2, 3)), table.clone().requires_grad_()
    compute_loss(memory, tokens).backward()
    assert memory.table.grad is None
    gradients = get_row_gradients(memory.table)
    assert gradients is not None
    found = torch.zeros(80, 6)
    for rows, sums, _ in gradients.iterate_sums():
        found[rows] += sums
    read = dense[hash_ngrams(tokens, 40, (2, 3), 1, None)].sum(2)
    weights = torch.linspace(-1, 1, 6).view(2, 3)
    (read * weights + 0.1).square().sum().backward()
    assert dense.grad is not None
    torch.testing.assert_close(found.view(80, 2, 3), dense.grad)
    gradients.clear()
    assert list(gradients.iterate_sums()) == []


def test_fetched_rows_equal_read_ones_and_are_left_afterwards() -> None:
    tokens = sample_tokens()
    memory = NGramMemory(torch.randn(60, 1, 4), (1, 2), hashes=2)
    wanted = memory(tokens)
    with fetch_rows([memory], tokens):
        assert memory.fetched is not None
        assert torch.equal(memory(tokens), wanted)
    assert memory.fetched is None


@torch.no_grad()
@pytest.mark.parametrize("width", [4, 6], ids=["as wide as the stream", "projected"])
def test_gated_memory_equals_its_formula(width: int) -> None:
    layer, x, memory = GatedMemory(4, width, 1, 0.3), torch.randn(2, 5, 4), torch.randn(2, 5, 3, width)
    layer.gate.normal_()
    values = memory[:, :, 1]
    if width != 4:
        values = values @ layer.projection.weight.T
    openness = 2 * torch.sigmoid((x / x.square().mean(-1, keepdim=True).sqrt()) @ layer.gate)
    torch.testing.assert_close(layer(x, memory), x + 0.3 * openness[..., None] * values)


@torch.no_grad()
def test_evaluation_of_a_memory_keeps_no_state() -> None:
    model, tokens, others = build_random_model(memory_rows=40).eval(), sample_tokens(), sample_tokens(1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = model(tokens)
    model(others)
    assert torch.equal(model(tokens), first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.memory is not None
    assert get_row_gradients(model.memory.table).rows == []  # type: ignore[union-attr]
    assert model.memory.fetched is None


@torch.no_grad()
@pytest.mark.parametrize(("blocks", "places"), [("all", 5), ("none", 1), ("1", 2), ("0, 3", 3)])
def test_memory_blocks_read_the_rows_of_their_ngram(blocks: str, places: int) -> None:
    model = build_random_model(memory_rows=10_000, memory_blocks=blocks, embedding_smear=False, memory_width=4)
    assert model.memory is not None
    assert model.memory.table.shape == (20_000, places, 4)
    tokens = torch.tensor([[11, 12, 11, 12, 13]])
    rows = hash_ngrams(tokens, 10_000, (2, 3), 1, None)[0]
    before = model.embed(model.build_inputs(tokens))
    model.memory.table[rows[1, 0], 0] += 1.0
    after = model.embed(model.build_inputs(tokens))
    assert (before != after).any(-1)[0].tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_rows": -1}, "at least 0"),
        ({"memory_orders": "2,2"}, "different lengths"),
        ({"memory_orders": "0"}, "different lengths"),
        ({"memory_orders": "two"}, "numbers with commas"),
        ({"memory_blocks": "first"}, "numbers with commas"),
        ({"memory_blocks": "0,2"}, "depth 2 lacks"),
    ],
)
def test_config_with_impossible_memory_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(gpt.Config.sized(2, V, T), **fields)  # type: ignore[arg-type]


def test_memory_of_rows_that_hashes_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="shared equally"):
        NGramMemory(torch.zeros(7, 1, 4), (2, 3))(sample_tokens())


def test_result_of_a_read_has_the_type_of_autocast() -> None:
    memory = NGramMemory(torch.randn(60, 1, 4), (2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert memory(sample_tokens()).dtype == torch.bfloat16
    assert isinstance(memory(sample_tokens()).grad_fn, ReadRowsFunction._backward_cls)  # type: ignore[attr-defined]


def test_scores_of_gpt_with_memory_start_like_those_without() -> None:
    config = gpt.Config.sized(2, V, T)
    torch.manual_seed(0)
    plain = gpt.Model(config)
    torch.manual_seed(0)
    model = gpt.Model(dataclasses.replace(config, memory_rows=40))
    tokens = sample_tokens()
    torch.testing.assert_close(model(tokens), plain(tokens))
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
