"""Snapshots in reused memory hold the same content, and each checkpoint takes the same memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from trainer.checkpoint.store import HostBuffers, take_snapshot, write_snapshot
from trainer.ops.devices import allocate_pinned


class Allocations:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, count: int) -> Tensor:
        self.sizes.append(count)
        return torch.empty(count, dtype=torch.uint8)


def build_trained() -> tuple[nn.Module, list[Optimizer]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3).to(torch.bfloat16), nn.BatchNorm1d(3))
    optimizer = AdamW(model.parameters(), lr=0.1)
    train(model, optimizer)
    return model, [optimizer]


def train(model: nn.Module, optimizer: Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


def test_snapshots_in_buffers_write_the_same_files(tmp_path: Path) -> None:
    model, optimizers = build_trained()
    buffers = HostBuffers(Allocations(), segment_bytes=256)
    for step in range(3):
        for kind in (None, torch.bfloat16):
            files = [
                write_snapshot(
                    tmp_path / f"step-0000000{step}", take_snapshot(model, optimizers, kind, memory), {"step": step}
                ).files
                for memory in (None, buffers)
            ]
            assert files[0] == files[1]
        train(model, optimizers[0])


def test_second_snapshot_reuses_the_memory_of_the_first() -> None:
    model, optimizers = build_trained()
    allocations = Allocations()
    buffers = HostBuffers(allocations, segment_bytes=256)
    first = take_snapshot(model, optimizers, buffers=buffers).weights
    sizes = list(allocations.sizes)
    train(model, optimizers[0])
    second = take_snapshot(model, optimizers, buffers=buffers).weights
    assert allocations.sizes == sizes
    assert min(sizes) == 256
    assert {name: each.data_ptr() for name, each in first.items()} == {
        name: each.data_ptr() for name, each in second.items()
    }
    assert all(torch.equal(second[name], value) for name, value in model.state_dict().items() if name in second)
    take_snapshot(model, None, torch.bfloat16, buffers)  # a milestone, in a part of the same memory
    assert allocations.sizes == sizes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_snapshot_of_a_gpu_is_exact_in_pinned_memory() -> None:
    model = nn.Linear(300, 300, device="cuda")
    buffers = HostBuffers(allocate_pinned)
    for _ in range(2):
        taken = take_snapshot(model, None, buffers=buffers).weights
        assert all(torch.equal(taken[name], value.cpu()) for name, value in model.state_dict().items())
        assert all(segment.is_pinned() for segment in buffers.segments)
        nn.init.normal_(model.weight)
