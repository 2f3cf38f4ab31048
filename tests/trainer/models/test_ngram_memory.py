"""The n-gram memory: its hashes, what the baseline adds, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.gpt_models import END, T, V, build_random_model, sample_tokens
from trainer.distributed.devices import compute_gradient_norm
from trainer.errors import ExitCode
from trainer.models.ngram_memory import GatedMemory, NGramMemory, fetch_rows
from trainer.ops.ngram_memory import hash_ngrams

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


def test_fetched_rows_equal_read_ones_and_are_left_afterwards() -> None:
    tokens = sample_tokens()
    memory = NGramMemory(torch.randn(60, 1, 4), (1, 2), hashes=2)
    wanted = memory(tokens)
    with fetch_rows([memory], tokens):
        assert torch.equal(memory(tokens), wanted)
    assert memory.fetched is None
    with torch.autocast("cpu", torch.bfloat16):
        assert memory(tokens).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="shared equally"):
        NGramMemory(torch.zeros(7, 1, 4), (2, 3))(tokens)


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
@pytest.mark.parametrize(("blocks", "places"), [("all", 5), ("none", 1), ("1", 2), ("0, 3", 3)])
def test_memory_blocks_read_the_rows_of_their_ngram(blocks: str, places: int) -> None:
    model = build_random_model(memory_rows=10_000, memory_blocks=blocks, embedding_smear=False, memory_width=4)
    assert model.memory.table.shape == (20_000, places, 4)
    tokens = torch.tensor([[11, 12, 11, 12, 13]])
    rows = hash_ngrams(tokens, 10_000, (2, 3), 1, None)[0]
    before = model.embed(model.build_inputs(tokens))
    model.memory.table[rows[1, 0], 0] += 1.0
    after = model.embed(model.build_inputs(tokens))
    assert (before != after).any(-1)[0].tolist() == [False, True, False, True, False]


FLAGS = ("--budget", "8steps", "--checkpoint-every", "4steps", "--model.memory_rows", "200")


@pytest.mark.slow
def test_run_with_a_memory_on_two_devices_is_refused(
    train: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, *FLAGS, "--devices", "2") == ExitCode.USER_ERROR
    assert "one device" in capsys.readouterr().err


def test_gradient_norm_includes_the_rows_of_a_memory() -> None:
    model = build_random_model(memory_rows=40)
    model.memory(torch.tensor([[11, 12]])).backward(torch.full((1, 2, 1, 32), 0.5))
    # Two tokens read two rows each, whose gradients have 32 numbers of 0.5.
    norm = compute_gradient_norm(list(model.parameters()))
    assert float(norm) == pytest.approx(0.5 * (4 * 32) ** 0.5)
