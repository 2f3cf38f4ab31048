"""Launch a training step on the fake H100; print where the CPU waited for the GPU, as JSON.

    python -m tests.cuda.launch_step

Tensors there have no data: reading one raises. Copies from main memory that are waited for are recorded.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from benchmarks.cuda_predicted.fake_h100 import install_fake_h100

VOCABULARY, LENGTH, ROWS = 512, 1024, 4


def main() -> int:
    install_fake_h100()

    # After the installation, since these import torch.
    import torch
    from torch import Tensor, nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from trainer.graph.build import build_constants
    from trainer.graph.model import GraphModel
    from trainer.graph.trace import trace_architecture
    from trainer.models import load_architecture
    from trainer.optim.optimizers import apply_schedule, build_optimizers
    from trainer.training.loop import train_step
    from trainer.training.objective import Objective
    from trainer.training.precision import convert_tables
    from trainer.training.run import GradientSpikeFilter

    waits: Counter[str] = Counter()

    class WaitRecorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "cpu":
                return 1.0  # the batch's number of targets, counted before anything is launched
            result = func(*args, **kwargs)
            tensors = [value for value in (*args, *kwargs.values(), result) if isinstance(value, Tensor)]
            devices = {tensor.device.type for tensor in tensors}
            is_copy = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
            if is_copy and len(devices) == 2 and not kwargs.get("non_blocking", len(args) > 2 and args[2]):
                waits[f"{func} of {tuple(args[0].shape)}"] += 1
            return result

    class AutocastModel(nn.Module):
        """What Fabric makes of an objective."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *arguments: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return self.module(*arguments)

    module = load_architecture("gpt")
    config = dataclasses.replace(module.Config.sized(2, VOCABULARY, LENGTH), width=256, heads=2, memory_rows=4096)
    traced, recipe = trace_architecture(module, config), module.recipe(config)
    recipe = dataclasses.replace(recipe, clip=1.0)
    fabric: Any = SimpleNamespace(
        device=torch.device("cuda", 0),
        world_size=1,
        no_backward_sync=lambda *_, **__: nullcontext(),
        backward=lambda loss: loss.backward(),
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        stored = {
            tensor.name: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="cuda")
            for tensor in traced.initialization.tensors
        }
        constants = build_constants(traced.initialization)
        model = GraphModel(traced, stored | {name: torch.empty_like(c, device="cuda") for name, c in constants.items()})
        tables = convert_tables(model, recipe)
        objective = Objective(model.train())
        optimizers = build_optimizers(model, recipe, "bf16", "eager")
        spike_filter = GradientSpikeFilter("skip", norms=[1.0] * 50)
    batch = tuple(torch.zeros(ROWS, LENGTH, dtype=torch.int64) for _ in range(2))
    # The compiler does not work below a recorder. What it compiles reads nothing, which its graphs prove.
    with torch.compiler.set_stance("force_eager"), FakeTensorMode(allow_non_fake_inputs=True), WaitRecorder():
        apply_schedule(optimizers, recipe, 0.5, 7)
        train_step(fabric, AutocastModel(objective), optimizers, batch, ROWS // 2, spike_filter, clip=1.0)
    kinds = [type(optimizer).__name__ for optimizer in optimizers]
    json.dump({"waits": waits, "optimizers": kinds, "tables": tables}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
