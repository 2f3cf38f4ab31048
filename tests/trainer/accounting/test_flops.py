"""FLOP counts equal closed forms for every kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.accounting import flops, peak_flops
from trainer.models.base import LanguageModel


class SmallModel(LanguageModel):
    """An embedding, a given middle part, a head."""

    def __init__(self, middle):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.middle = middle

    def features(self, tokens):
        return self.middle(self, self.embedding(tokens))

    def logits(self, features):
        return self.head(features)


def count_with(middle):
    return flops.count_flops(SmallModel(middle), torch.randint(0, 50, (1, 16)))


BASE_FLOPS = 6 * 8 * 50


def attend(model, x):
    x = x[:, None]
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]


def attend_with_flash_kernel(model, x):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return attend(model, x)


def test_count_flops_of_attention_is_equal_for_all_kernels():
    assert count_with(attend) == count_with(attend_with_flash_kernel) == BASE_FLOPS + 12 * 16 * 8


def test_count_flops_covers_rnn_vector_and_elementwise_operators():
    assert count_with(lambda model, x: x @ model.weight) == BASE_FLOPS + 6 * 64
    assert count_with(lambda model, x: model.lstm(x)[0]) == BASE_FLOPS + 6 * (4 * 8 * 8 + 4 * 8 * 8)
    assert (
        count_with(lambda model, x: x + torch.mv(model.weight.detach(), x[0, 0].detach())) == BASE_FLOPS + 2 * 64 / 16
    )
    assert count_with(lambda model, x: F.gelu(F.layer_norm(x, (8,)))) == BASE_FLOPS


def test_count_parameters_counts_tied_embedding_once():
    model = SmallModel(None)
    model.head.weight = model.embedding.weight
    counts = flops.count_parameters(model)
    assert counts["embedding"] == 400
    assert (
        counts["total"] == counts["embedding"] + counts["non_embedding"] == sum(p.numel() for p in model.parameters())
    )


def test_peak_flops_of_a_cpu_are_measured_and_those_of_a_node_multiplied() -> None:
    assert 1e8 < flops.find_peak_flops(torch.device("cpu"), "fp32", 1) < 1e14
    assert peak_flops.lookup_peak_flops("2 x NVIDIA H100") == 2 * peak_flops.PEAK_FLOPS["H100"]
    assert peak_flops.lookup_peak_flops("2 x Unknown") is None
