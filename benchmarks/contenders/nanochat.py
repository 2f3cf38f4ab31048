"""nanochat's model and optimizer, imported from a checkout; nothing of it is copied.

Its classes run on a CPU as they are: attention falls back to torch's, and without a GPU it computes in fp32. The
schedule is that of its training script, which cannot be imported because it trains. Lengths that the script states in
steps are fractions here, of the steps of its depth 12, since the runs here have a hundredth of them: 400 steps of
rising momentum. Windows are `L`, as in its own script for CPUs.
"""

from __future__ import annotations

import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.contenders.base import SEQUENCE_LENGTH, Plan, count_steps
from trainer.accounting import flops
from trainer.errors import UserError
from trainer.models.base import LanguageModel

FILES = ("nanochat/gpt.py", "nanochat/optim.py", "nanochat/common.py", "nanochat/flash_attention.py")
RATES = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "matrix_lr": 0.02, "scalar_lr": 0.5}  # defaults of its script
WEIGHT_DECAY = 0.28
BATCH = 2**19  # tokens of a step that the rates are for
TOKENS = 12 * (12 * 12 * 768**2 + 32768 * 768)  # of the run that the weight decay is for, depth 12
MOMENTUM_WARMUP = 400 / (TOKENS / BATCH)
WARMUP_STEPS = 40
WARMDOWN, FINAL = 0.65, 0.05


class NanochatError(UserError):
    """The checkout cannot be used."""


def import_classes(path: Path) -> Any:
    """Import `nanochat.gpt` from a checkout. Raises `NanochatError`."""
    missing = next((name for name in FILES if not (path / name).is_file()), None)
    if missing:
        raise NanochatError(f"{path} is no checkout of nanochat: it has no {missing}")
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
    try:
        return import_module("nanochat.gpt")
    except ImportError as error:
        raise NanochatError(f"{path}/nanochat/gpt.py cannot be imported: {error}") from error


class LogitsModel(LanguageModel):
    """The model as a `LanguageModel`, for counting FLOPs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)

    def logits(self, features: Tensor) -> Tensor:
        return features


class Nanochat:
    """nanochat's `GPT` with its `setup_optimizer`."""

    def __init__(self, plan: Plan, path: Path) -> None:
        module, size = import_classes(path), plan.size
        # A shape of parameters is a compilation of its optimizer's step.
        torch._dynamo.config.recompile_limit = 64
        config = module.GPTConfig(
            sequence_len=SEQUENCE_LENGTH,
            vocab_size=plan.vocabulary_size,
            n_layer=size.depth,
            n_head=size.heads,
            n_kv_head=size.heads,
            n_embd=size.width,
            window_pattern="L",
        )
        with torch.device("meta"):
            self.model = module.GPT(config)
        self.model.to_empty(device="cpu")
        self.model.init_weights()
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        row = torch.zeros(1, SEQUENCE_LENGTH, dtype=torch.int64)
        self.flops_per_token = flops.count_flops(LogitsModel(self.model), row)
        self.steps = count_steps(plan, self.flops_per_token)
        self.factors, self.tokens_per_step = plan.factors, plan.tokens_per_step
        self.decay = self.compute_weight_decay()
        self.optimizer = self.build_optimizer()
        self.parts = (self.model, self.optimizer)
        self.compute_loss = torch.compile(self.model, dynamic=False) if plan.is_compiled else self.model

    def compute_weight_decay(self) -> float:
        """Return what its rule gives: rate x decay ~ batch / tokens of the run. Its rate ~ sqrt(batch)."""
        tokens = self.steps * self.tokens_per_step
        by_rule = WEIGHT_DECAY * (self.tokens_per_step / BATCH) * (TOKENS / tokens)
        return self.factors.decay * by_rule / self.factors.matrices

    def build_optimizer(self) -> torch.optim.Optimizer:
        factors = self.factors
        optimizer = self.model.setup_optimizer(
            unembedding_lr=RATES["unembedding_lr"] * factors.embeddings,
            embedding_lr=RATES["embedding_lr"] * factors.embeddings,
            matrix_lr=RATES["matrix_lr"] * factors.matrices,
            scalar_lr=RATES["scalar_lr"] * factors.scalars,
            weight_decay=self.decay,
        )
        smear = next(group for group in optimizer.param_groups if group["params"][-1] is self.model.backout_lambda)
        smear["initial_lr"] *= factors.smear  # its rate is no argument
        return optimizer

    def set_schedule(self, step: int) -> None:
        """Set rates, momentum and decay for a step, as its training script does."""
        fraction = step / self.steps
        warmup = WARMUP_STEPS / self.steps if self.factors.warmup is None else self.factors.warmup
        left = min((1 - fraction) / WARMDOWN, 1.0)
        rate = (step + 1) / (warmup * self.steps) if fraction < warmup else FINAL + (1 - FINAL) * left
        momentum = 0.90 + 0.07 * left
        if fraction < MOMENTUM_WARMUP:
            momentum = 0.85 + 0.12 * fraction / MOMENTUM_WARMUP
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(rate, 1.0)
            if group["kind"] == "muon":
                group["momentum"] = momentum
                group["weight_decay"] = self.decay * (1 + math.cos(math.pi * fraction)) / 2

    def train_step(self, inputs: Tensor, targets: Tensor, step: int) -> float:
        loss = self.compute_loss(inputs, targets)
        loss.backward()
        self.set_schedule(step)
        self.optimizer.step()
        self.model.zero_grad(set_to_none=True)
        return loss.item()

    def compute_losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.model(inputs, targets, loss_reduction="none")
