"""A model that trains in fp8 reaches the loss that it reaches in bf16. The products are emulated on a CPU."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import pytest
import torch

from trainer.graph.fp8 import Fp8Linear, convert_graph_to_fp8
from trainer.graph.model import build_model
from trainer.graph.trace import trace_architecture
from trainer.models import load_architecture
from trainer.optim.optimizers import build_optimizers
from trainer.training.objective import Objective

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of torchao's imports
    pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed: `make test-cuda` installs it"),
]
VOCABULARY, LENGTH, ROWS, STEPS = 64, 32, 16, 80


def train(is_fp8: bool) -> float:
    """Train on rows that repeat after a few tokens, and return the mean loss per token of the last ten steps."""
    module = load_architecture("gpt")
    config = module.Config(VOCABULARY, LENGTH, depth=2, width=64, heads=2)
    torch.manual_seed(0)
    model = build_model(trace_architecture(module, config)).train()
    if is_fp8:
        assert convert_graph_to_fp8(model, partial(Fp8Linear, emulate=True)) == 2 * 6 + 1
    optimizers = build_optimizers(model, module.recipe(config), "fp32")
    objective, losses = Objective(model), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        period = torch.randint(0, VOCABULARY, (ROWS, 8), generator=generator)
        tokens = period.repeat(1, 1 + LENGTH // 8)[:, : LENGTH + 1]
        with torch.autocast("cpu", torch.bfloat16):
            loss = objective(tokens[:, :-1], tokens[:, 1:]) / (ROWS * LENGTH)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    return sum(losses[-10:]) / 10


def test_loss_in_fp8_equals_loss_in_bf16() -> None:
    bf16, fp8 = train(False), train(True)
    assert bf16 < 3.5, "it learns: a uniform guess has 4.16"
    assert fp8 == pytest.approx(bf16, abs=0.05)
