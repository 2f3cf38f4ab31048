"""Encodings of hidden states and gradients: sizes, errors, and what is refused."""

from __future__ import annotations

import pytest
import torch

from trainer.swarm.frames import DTYPES, MalformedFrameError
from trainer.swarm.wire import decode_tensor, encode_tensor

SHAPE = (2, 16, 48)


def random_tensor(scale: float = 1.0) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(3)) * scale


@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
def test_plain_encodings_are_one_tensor_of_that_dtype(wire: str) -> None:
    tensors = encode_tensor(random_tensor(), wire)
    assert [tensor.dtype for tensor in tensors] == [DTYPES[wire]]
    assert torch.equal(decode_tensor(tensors, wire, SHAPE), random_tensor().to(DTYPES[wire]))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_fp8_takes_a_byte_a_number_and_errs_by_a_sixteenth(scale: float) -> None:
    tensors = encode_tensor(random_tensor(scale), "fp8")
    assert len(tensors) == 2
    assert sum(tensor.nbytes for tensor in tensors) == 2 * 16 * (48 + 4)
    error = (decode_tensor(tensors, "fp8", SHAPE) - random_tensor(scale)).abs()
    largest = random_tensor(scale).abs().amax(-1, keepdim=True)
    assert (error <= random_tensor(scale).abs() / 16 + largest / 448 / 2**9).all()


def test_zeros_stay_zeros_in_fp8() -> None:
    assert not decode_tensor(encode_tensor(torch.zeros(SHAPE), "fp8"), "fp8", SHAPE).any()


def test_not_finite_numbers_are_not_hidden_by_fp8() -> None:
    for bad in (float("nan"), float("inf")):
        gradient = random_tensor()
        gradient[1, 3, 5] = bad
        assert not decode_tensor(encode_tensor(gradient, "fp8"), "fp8", SHAPE).isfinite().all()


def test_unexpected_tensors_are_refused() -> None:
    numbers, scale = encode_tensor(random_tensor(), "fp8")
    for tensors in ((), (numbers,), (numbers, scale, scale), (numbers, scale.half()), (numbers[:1], scale[:1])):
        with pytest.raises(MalformedFrameError, match="expected fp8"):
            decode_tensor(tensors, "fp8", SHAPE)
    with pytest.raises(MalformedFrameError, match="expected fp32"):
        decode_tensor((random_tensor().half(),), "fp32", SHAPE)
