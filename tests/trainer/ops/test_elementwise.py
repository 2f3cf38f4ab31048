"""Element-wise parts equal their definitions, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models.gpt import rotary_tables
from trainer.ops.elementwise import cast_for_autocast, norm, rotate, softcap, squared_relu

COSINE, SINE = rotary_tables(3, 10, 8, 100.0, torch.device("cpu"))


def rotate_complex(x: Tensor) -> Tensor:
    """Rotate by multiplication with complex numbers."""
    first, second = x.chunk(2, dim=-1)
    result = torch.complex(first, second) * torch.complex(COSINE[..., :4], SINE)
    return torch.cat((result.real, result.imag), dim=-1)


GAIN = torch.tensor([0.5, 1.0, 2.0])
PAIRS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]] = {
    "norm": (norm, lambda x: F.rms_norm(x, (8,), eps=1e-6), [torch.randn(2, 7, 8)]),
    "norm with a gain": (
        norm,
        lambda x, gain: F.rms_norm(x, (8,), eps=1e-6) * gain[:, None],
        [torch.randn(2, 7, 3, 8), GAIN],
    ),
    "norm of zeros": (norm, lambda x: F.rms_norm(x, (8,), eps=1e-6), [torch.zeros(2, 7, 8)]),
    "rotate": (lambda x: rotate(x, COSINE, SINE), rotate_complex, [torch.randn(2, 7, 3, 8)]),
    "squared_relu": (squared_relu, lambda x: F.relu(x).square(), [torch.randn(5, 8)]),
    "softcap": (lambda x: softcap(2 * x / 5.0, 5.0), lambda x: 5.0 * torch.tanh(x / 5.0), [10 * torch.randn(5, 8)]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_elementwise_values_and_gradients_equal_plain_formula(name: str) -> None:
    ours, plain, tensors = PAIRS[name]
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    one, two = ours(*tensors), plain(*tensors)
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(one)
    mine, wanted = (torch.autograd.grad(out, tensors, direction) for out in (one, two))
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_elementwise_bf16_input_computes_in_fp32(name: str) -> None:
    ours, plain, tensors = PAIRS[name]
    x, *rest = tensors
    answer = ours(x.bfloat16(), *rest)
    torch.testing.assert_close(answer.float(), plain(x.bfloat16().float(), *rest), rtol=1e-2, atol=1e-2)
    assert answer.dtype == (torch.float32 if name == "softcap" else torch.bfloat16)


def test_cast_for_autocast_sums_gradients_of_a_table_in_fp32() -> None:
    table = torch.zeros(1, 4, requires_grad=True)
    tokens = torch.zeros(1000, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16):
        rows = cast_for_autocast(F.embedding(tokens, table))
    assert rows.dtype == torch.bfloat16
    rows.backward(torch.ones_like(rows))
    assert table.grad is not None
    assert table.grad.unique().tolist() == [1000], "in bf16, which has 8 bits, it would be 256"
    assert cast_for_autocast(table) is table
