"""Rounding of matrix products: TF32 for benchmarks on a GPU, fp32 for everything else."""

from __future__ import annotations

import pytest
import torch

from trainer.scoring.score_record import use_tf32


@pytest.mark.parametrize(("device", "within"), [("cuda", "high"), ("cpu", "highest")])
def test_only_benchmarks_on_a_gpu_round_to_tf32(device: str, within: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with use_tf32(torch.device(device)):
            assert torch.get_float32_matmul_precision() == within
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
