"""FLOPs are counted by our harness: by the closed form, whatever the kernel, and void where it cannot see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.accounting import flops, plausibility
from trainer.models import gpt
from trainer.models.base import LanguageModel

SIZES = [(1, 64, 2, 32), (2, 64, 1, 128), (3, 96, 3, 256), (4, 128, 2, 64), (2, 256, 4, 512)]


@pytest.mark.parametrize(("depth", "width", "heads", "length"), SIZES)
def test_the_baseline_costs_what_the_closed_form_says(depth, width, heads, length):
    config = gpt.Config(vocabulary_size=512, sequence_length=length, depth=depth, width=width, heads=heads)
    model = gpt.Model(config)
    found = flops.count(model, torch.randint(0, 512, (1, length)))
    matrices = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    assert found.void == ""
    assert found.per_token == pytest.approx(6 * matrices + 12 * depth * length * width, rel=0.01)


def test_a_window_or_more_rows_change_nothing_for_a_token():
    config = gpt.Config(vocabulary_size=512, sequence_length=64, depth=2, width=64, heads=1, windows="SL")
    model = gpt.Model(config)
    one, four = (flops.count(model, torch.randint(0, 512, (rows, 64))).per_token for rows in (1, 4))
    assert one == four
    wide = gpt.Model(gpt.Config(vocabulary_size=512, sequence_length=64, depth=2, width=64, heads=1))
    assert flops.count(wide, torch.randint(0, 512, (1, 64))).per_token == one


class Small(LanguageModel):
    """An embedding, something, a head."""

    def __init__(self, something):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.something = something

    def features(self, tokens):
        return self.something(self, self.embedding(tokens))

    def logits(self, features):
        return self.head(features)


def counted(something):
    return flops.count(Small(something), torch.randint(0, 50, (1, 16)))


REST = 6 * 8 * 50


def attend(model, x):
    x = x[:, None]
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]


def attend_by_a_kernel_of_its_own(model, x):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return attend(model, x)


def test_attention_counts_the_same_whichever_kernel_computes_it():
    assert counted(attend).per_token == counted(attend_by_a_kernel_of_its_own).per_token == REST + 12 * 16 * 8


def test_other_operators_have_formulas_too():
    assert counted(lambda model, x: x @ model.weight).per_token == REST + 6 * 64
    assert counted(lambda model, x: model.lstm(x)[0]).per_token == REST + 6 * (4 * 8 * 8 + 4 * 8 * 8)
    assert (
        counted(lambda model, x: x + torch.mv(model.weight.detach(), x[0, 0].detach())).per_token == REST + 2 * 64 / 16
    )
    assert counted(lambda model, x: F.gelu(F.layer_norm(x, (8,)))).per_token == REST


@torch.library.custom_op("strange::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


product.register_autograd(lambda context, gradient: (gradient, None))

HIDDEN = {
    "a kernel nobody registered": (lambda model, x: product(x, model.weight), plausibility.NO_FORMULA),
    "an operator of torch without a formula": (lambda model, x: torch.fft.fft(x).real, plausibility.NO_FORMULA),
    "numpy": (
        lambda model, x: x + torch.from_numpy(x.detach().numpy() @ np.ones((8, 8), "f")),
        plausibility.LEAVES_TORCH,
    ),
    "an address": (lambda model, x: x + 0 * x.data_ptr(), plausibility.LEAVES_TORCH),
    "lists of numbers": (lambda model, x: x + torch.tensor(x.detach().tolist()), plausibility.LEAVES_TORCH),
    "dlpack": (lambda model, x: x + torch.from_dlpack(x.detach()), plausibility.LEAVES_TORCH),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_cannot_be_seen_voids_the_count(name):
    something, sentence = HIDDEN[name]
    found = counted(something)
    assert found.void == sentence
    assert found.names


def test_a_custom_kernel_with_a_registered_formula_counts(monkeypatch):
    monkeypatch.setitem(flops.FORMULAS, "strange::product", lambda x, weight, *_, **__: 2 * x[1] * x[2] * weight[1])
    found = counted(lambda model, x: product(x, model.weight))
    assert found == flops.Count(REST + 2 * 64)


def test_a_table_that_the_head_shares_is_an_embedding_and_counts_once():
    model = Small(None)
    model.head.weight = model.embedding.weight
    counts = flops.parameters(model)
    assert counts["embedding"] == 400
    assert (
        counts["total"] == counts["embedding"] + counts["non_embedding"] == sum(p.numel() for p in model.parameters())
    )


def test_other_work_later_voids_the_first_count():
    model = Small(lambda model, x: x)
    tokens = torch.randint(0, 50, (1, 16))
    first = flops.count(model, tokens)
    assert flops.recount(first, model, tokens) == first
    model.something = lambda model, x: x @ model.weight
    assert flops.recount(first, model, tokens) == flops.Count(first.per_token, plausibility.CHANGES)


def test_a_forward_of_its_own_does_not_hide_what_training_calls():
    model = Small(lambda model, x: x @ model.weight)
    model.forward = lambda tokens: model.head(model.embedding(tokens))
    assert flops.count(model, torch.randint(0, 50, (1, 16))).per_token == REST + 6 * 64


def test_matrix_work_before_the_first_step_is_metered():
    with flops.Meter() as meter:
        torch.ones(4, 5) @ torch.ones(5, 6)
    assert meter.flops == 2 * 4 * 5 * 6
