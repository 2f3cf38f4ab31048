"""Encodings of hidden states and gradients: sizes, errors, and what is refused."""

from __future__ import annotations

import pytest
import torch

from trainer.swarm.frames import DTYPES, MalformedFrameError
from trainer.swarm.wire import count_tensors, decode_tensor, encode_gradient, encode_hidden

SHAPE = (2, 16, 48)


def random_tensor(scale: float = 1.0) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(3)) * scale


@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
def test_plain_encodings_are_one_tensor_of_that_dtype(wire: str) -> None:
    for encode in (encode_hidden, encode_gradient):
        tensors = encode(random_tensor(), wire)
        assert [tensor.dtype for tensor in tensors] == [DTYPES[wire]]
        assert torch.equal(decode_tensor(tensors, wire, SHAPE), random_tensor().to(DTYPES[wire]))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_fp8_takes_a_byte_a_number_and_errs_by_a_sixteenth(scale: float) -> None:
    tensors = encode_hidden(random_tensor(scale), "fp8")
    assert len(tensors) == count_tensors("fp8")
    assert sum(tensor.nbytes for tensor in tensors) == 2 * 16 * (48 + 4)
    error = (decode_tensor(tensors, "fp8", SHAPE) - random_tensor(scale)).abs()
    largest = random_tensor(scale).abs().amax(-1, keepdim=True)
    assert (error <= random_tensor(scale).abs() / 16 + largest / 448 / 2**9).all()


def test_zeros_stay_zeros_in_fp8() -> None:
    assert not decode_tensor(encode_gradient(torch.zeros(SHAPE), "fp8-feedback"), "fp8-feedback", SHAPE).any()


def test_error_feedback_makes_a_sum_over_positions_more_exact() -> None:
    gradient = random_tensor()
    plain = decode_tensor(encode_hidden(gradient, "fp8"), "fp8", SHAPE)
    fed_back = decode_tensor(encode_gradient(gradient, "fp8-feedback"), "fp8-feedback", SHAPE)
    assert torch.equal(decode_tensor(encode_gradient(gradient, "fp8"), "fp8", SHAPE), plain)
    error = [float((each - gradient).sum(1).square().mean().sqrt()) for each in (plain, fed_back)]
    assert error[1] < error[0] / 2


def test_not_finite_numbers_are_not_hidden_by_fp8() -> None:
    for bad in (float("nan"), float("inf")):
        gradient = random_tensor()
        gradient[1, 3, 5] = bad
        for wire in ("fp8", "fp8-feedback"):
            assert not decode_tensor(encode_gradient(gradient, wire), wire, SHAPE).isfinite().all()


def test_unexpected_tensors_are_refused() -> None:
    numbers, scale = encode_hidden(random_tensor(), "fp8")
    for tensors in ((), (numbers,), (numbers, scale, scale), (numbers, scale.half()), (numbers[:1], scale[:1])):
        with pytest.raises(MalformedFrameError, match="expected fp8"):
            decode_tensor(tensors, "fp8", SHAPE)
    with pytest.raises(MalformedFrameError, match="expected fp32"):
        decode_tensor((random_tensor().half(),), "fp32", SHAPE)
