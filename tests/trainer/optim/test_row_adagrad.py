"""Row-wise Adagrad equals a dense reference, and does not depend on the split into passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trainer.models.base import ParameterGroup, Recipe
from trainer.models.ngram_memory import NGramMemory
from trainer.ops.ngram_memory import hash_ngrams
from trainer.optim.optimizers import build_optimizers, set_skipped
from trainer.optim.row_adagrad import RowAdagrad

ROWS, SLICES, WIDTH, EPSILON, RATE = 30, 2, 3, 1e-10, 0.1


def build(decay: float = 0.0, seed: int = 0) -> tuple[NGramMemory, RowAdagrad]:
    table = torch.randn(2 * ROWS, SLICES, WIDTH, generator=torch.Generator().manual_seed(seed))
    memory = NGramMemory(table, (1, 3))
    group = ParameterGroup("memory", ("table",), "row_adagrad", RATE, weight_decay=decay)
    (optimizer,) = build_optimizers(memory, Recipe((group,)))
    assert isinstance(optimizer, RowAdagrad)
    return memory, optimizer


def sample(step: int) -> Tensor:
    return torch.randint(17, (8, 5), generator=torch.Generator().manual_seed(step))


def run_step(memory: NGramMemory, optimizer: RowAdagrad, tokens: Tensor, micro_batch: int) -> None:
    weights = torch.linspace(-1, 1, SLICES * WIDTH).view(SLICES, WIDTH)
    for part in tokens.split(micro_batch):
        (memory(part) * weights + 0.1 * part[..., None, None]).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_equal_those_of_a_dense_reference(decay: float) -> None:
    memory, optimizer = build(decay)
    table, square = memory.table.detach().clone(), torch.zeros(2 * ROWS, SLICES)
    weights = torch.linspace(-1, 1, SLICES * WIDTH).view(SLICES, WIDTH)
    for step in range(5):
        tokens = sample(step)
        rows = hash_ngrams(tokens, ROWS, (1, 3), 1, None)
        dense = table.clone().requires_grad_()
        (dense[rows].sum(2) * weights + 0.1 * tokens[..., None, None]).square().sum().backward()
        square += dense.grad.square().mean(-1)
        is_read = torch.zeros(2 * ROWS, dtype=torch.bool).index_fill_(0, rows.flatten(), True)[:, None, None]
        change = dense.grad / (square.sqrt() + EPSILON)[..., None] + decay * table
        table = torch.where(is_read, table - RATE * change, table)
        run_step(memory, optimizer, tokens, 8)
        torch.testing.assert_close(memory.table.detach(), table)
        torch.testing.assert_close(optimizer.state[memory.table]["square"], square)


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_weights_are_independent_of_the_micro_batch_to_the_last_bit(micro_batch: int) -> None:
    whole, parts = build(), build()
    for step in range(20):
        run_step(*whole, sample(step), 8)
        run_step(*parts, sample(step), micro_batch)
    assert torch.equal(whole[0].table, parts[0].table)
    assert torch.equal(whole[1].state[whole[0].table]["square"], parts[1].state[parts[0].table]["square"])


def test_step_that_a_gpu_skips_changes_nothing() -> None:
    memory, optimizer = build(decay=0.5)
    before = memory.table.detach().clone()
    optimizer.found_inf = torch.ones(())
    (memory(sample(0)) * torch.nan).sum().backward()
    optimizer.step()
    assert torch.equal(memory.table, before)
    assert not optimizer.state[memory.table]["square"].any()
    assert not set_skipped([optimizer], torch.ones((), dtype=torch.bool)), "only a GPU's is read there"


def test_groups_filled_up_for_a_gpu_step_as_those_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the number of rows is unknown, so the rest is row 0, without a step."""
    cut, filled = build(decay=0.5), build(decay=0.5)
    run_step(*cut, sample(0), 8)
    monkeypatch.setattr("trainer.ops.ngram_memory.is_count_known", lambda rows: False)
    run_step(*filled, sample(0), 8)
    torch.testing.assert_close(cut[0].table, filled[0].table, rtol=0, atol=0)


def test_tables_and_other_parameters_need_optimizers_of_their_own() -> None:
    memory, linear = NGramMemory(torch.zeros(6, 1, 2), (2,)), nn.Linear(2, 2, bias=False)
    for model, optimizer in ((memory, "adamw"), (linear, "row_adagrad")):
        with pytest.raises(ValueError, match="row_adagrad is for an n-gram memory"):
            build_optimizers(model, Recipe((ParameterGroup("all", ("*",), optimizer, 0.1),)))  # type: ignore[arg-type]
