"""One of two processes on a CPU that train RWKV-5 with our `zero2` and with DeepSpeed's ZeRO-2, from the same weights.

`torchrun --nproc-per-node 2 -m tests.trainer.distributed.deepspeed_zero2 OUT`; the first process writes losses and
gradient norms to OUT. DeepSpeed's engine runs by itself, since Fabric's strategy for it refuses CPUs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.distributed.devices import average_across_processes, build_fabric
from trainer.models import load_architecture
from trainer.training.loop import train_step
from trainer.training.objective import Objective
from trainer.training.run import GradientSpikeFilter

VOCABULARY, ROWS, MICRO_BATCH, LENGTH, STEPS = 64, 4, 2, 32, 8
LEARNING_RATE, CLIP = 1e-2, 0.5


def build_objective() -> Objective:
    torch.manual_seed(1)
    architecture = load_architecture("rwkv5")
    return Objective(architecture.Model(architecture.Config.sized(2, VOCABULARY, LENGTH)))


def build_batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets `[ROWS, LENGTH]` of a process: what follows a token depends on it alone."""
    rng = torch.Generator().manual_seed(2 * step + rank)
    starts = torch.randint(0, VOCABULARY, (ROWS, 1), generator=rng)
    tokens = (starts + 7 * torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def build_optimizer(objective: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(objective.parameters(), lr=LEARNING_RATE)


def train_ours(fabric: Any) -> list[tuple[float, float]]:
    """Return loss and gradient norm of each step with `zero2` and our training step."""
    model = fabric.setup_module(build_objective())
    optimizer = fabric.setup_optimizers(build_optimizer(model))
    spike_filter = GradientSpikeFilter("off")
    values = []
    for step in range(STEPS):
        batch = build_batch(step, fabric.global_rank)
        step_values = train_step(fabric, model, [optimizer], batch, MICRO_BATCH, spike_filter, clip=CLIP)
        values.append(step_values.read())
    return values


def train_deepspeed(fabric: Any) -> list[tuple[float, float]]:
    """Return the same with DeepSpeed's engine."""
    import deepspeed

    # Without the operator for sums in shared memory, whose compilation takes minutes: gloo exchanges gradients.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    objective = build_objective()
    engine, *_ = deepspeed.initialize(
        model=objective,
        optimizer=build_optimizer(objective),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": MICRO_BATCH,
            "gradient_accumulation_steps": ROWS // MICRO_BATCH,
            "gradient_clipping": CLIP,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        },
    )
    values = []
    for step in range(STEPS):
        inputs, targets = build_batch(step, fabric.global_rank)
        total = 0.0
        for x, y in zip(inputs.split(MICRO_BATCH), targets.split(MICRO_BATCH), strict=True):
            loss = engine(x, y) / y.numel()
            engine.backward(loss)
            engine.step()  # updates weights after the last micro-batch only
            total += loss.item() * MICRO_BATCH / ROWS
        values.append((average_across_processes(fabric, [total])[0], float(engine.get_global_grad_norm())))
    return values


if __name__ == "__main__":
    torch.set_num_threads(1)
    shared_fabric = build_fabric("cpu", 2, "zero2", "fp32", None)
    result = {"ours": train_ours(shared_fabric), "deepspeed": train_deepspeed(shared_fabric)}
    if shared_fabric.is_global_zero:
        Path(sys.argv[1]).write_text(json.dumps(result))
