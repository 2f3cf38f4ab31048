"""The precision of matrix products, for `train.precision auto`.

On CUDA it is bf16 if the GPU supports it. Nothing is timed there: a small MLP is bound by kernel launches, so
fp32 looks as fast as bf16, and a large model in fp32 does not fit into the memory.

On a CPU it is measured, since bf16 is several times faster on one machine and slower on another: an MLP of width 256,
forward and backward, on 512 positions, about 0.1 s. A run keeps its precision, so a resumed run does not measure again.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from trainer.distributed.devices import DeviceError
from trainer.graph.fp8 import MULTIPLE, build_config, convert_graph_to_fp8
from trainer.graph.model import GraphModel
from trainer.graph.tables import convert_tables_to_bf16
from trainer.models.base import LanguageModel, Recipe
from trainer.ops import devices
from trainer.optim.optimizers import assign_parameters

MIN_SPEEDUP = 1.5  # of bf16: on a CPU the element-wise part of a model does not get faster
WIDTH, POSITIONS, REPEATS = 256, 512, 4


@lru_cache
def choose_precision(device: torch.device, threads: int) -> Literal["fp32", "bf16"]:
    """Return the precision to train in on this device. `threads` (torch's) only separates cached measurements."""
    if device.type == "cuda":
        return "bf16" if devices.has_bf16() else "fp32"
    with torch.random.fork_rng(devices=[]):
        up, down = (nn.Linear(*shape, bias=False, device=device) for shape in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)))
        x = torch.randn(POSITIONS, WIDTH, device=device, requires_grad=True)

    def run_pass(bf16: bool) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            y = down(F.relu(up(x)).square())
        y.float().sum().backward()

    # Alternating, so that other load on the machine affects both.
    times = [[measure_seconds(partial(run_pass, bf16)) for bf16 in (False, True)] for _ in range(REPEATS)]
    fp32, bf16 = (min(column) for column in zip(*times, strict=True))
    return "bf16" if fp32 > MIN_SPEEDUP * bf16 else "fp32"


def measure_seconds(work: Callable[[], None]) -> float:
    """Return how long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def check_fp8(device: Literal["cpu", "cuda"]) -> None:
    """Raise `DeviceError` unless matrices can be multiplied in 8 bits here."""
    if device != "cuda" or not devices.has_fp8():
        raise DeviceError("train.precision fp8 needs a GPU that supports it (Ada, Hopper or newer)")
    if importlib.util.find_spec("torchao") is None:
        raise DeviceError("train.precision fp8 needs torchao: pip install torchao")


def convert_tables(model: LanguageModel, recipe: Recipe) -> int:
    """Keep in bf16 the embeddings of a graph that only need 16 bits and that AdamW trains; return their number."""
    if not isinstance(model, GraphModel):
        return 0
    groups = assign_parameters(model, recipe)
    return convert_tables_to_bf16(model, [p for group, m in groups if group.optimizer == "adamw" for p in m.values()])


def convert_to_fp8(model: nn.Module) -> None:
    """Convert linear layers to fp8, of a module only those of its blocks.

    Only sizes that are multiples of 16, which the kernels need. A graph is evaluated in bf16, a module in fp8.
    """
    if isinstance(model, GraphModel):
        convert_graph_to_fp8(model)
        return
    from torchao.float8 import convert_to_float8_training

    def is_supported(module: nn.Module, name: str) -> bool:
        sizes = (module.in_features, module.out_features) if isinstance(module, nn.Linear) else (1,)
        return all(size % MULTIPLE == 0 for size in sizes)

    for block in model.repeated_blocks():
        convert_to_float8_training(block, config=build_config(), module_filter_fn=is_supported)
