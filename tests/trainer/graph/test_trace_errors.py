"""Code that cannot be traced raises an error with the source line, the construct and advice."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from trainer.graph.export import TraceError
from trainer.graph.trace import trace_architecture

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

ENTRY = """
import random
from dataclasses import dataclass

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe

CALLS = [0]
TABLE = nn.Parameter(torch.ones(16))


class Round(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.round()

    @staticmethod
    def backward(context, gradient):
        return gradient


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    sequence_length: int


class Model(LanguageModel):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64)
        self.register_buffer("count", torch.zeros(1))
        {constructor}

    def features(self, tokens):
        x = self.embedding(tokens)
        {features}
        return x

    def logits(self, features):
        return self.head(features)


def recipe(config):
    return Recipe((ParameterGroup("all", ("*",), "adamw", 1e-3),))
"""

FEATURES = {
    "a number of a tensor": ("x = x * x.sum().item()", r"a number is read from a tensor.*torch\.where"),
    "a branch on a value": ("if x.sum() > 0: x = -x", r"a number is read from a tensor.*torch\.where"),
    "a loop over values": ("for token in tokens[0]: x = x + int(token)", r"a loop over values"),
    "a mask as index": ("x = x[x > 0]", r"shape of a result depends on values.*multiply by the mask"),
    "repeats that are values": ("x = x.repeat_interleave(tokens[0], dim=1)", r"shape of a result depends on values"),
    "one_hot without a number": ("x = x + F.one_hot(tokens).sum()", r"F\.one_hot\(x, classes\)"),
    "bags with offsets": (
        "x = F.embedding_bag(tokens.flatten(), self.embedding.weight, tokens[:, 0]).view(-1, 32, 16)",
        r"pass indices \[bags, length\]|with indices \[bags, length\]",
    ),
    "numpy": ("x = x + torch.from_numpy(x.detach().numpy())", r"leaves torch for numpy.*torch's function"),
    "a write to a buffer": ("self.count += 1; x = x + self.count", r"writes to count .*keeps no state: `clone\(\)`"),
    "a write to a parameter": (
        "torch._foreach_add_([self.head.bias.detach()], 1); x = x + 0",
        r"not in the list of operators",
    ),
    "a write to the tokens": ("tokens += 1", r"writes to tokens .*`clone\(\)`"),
    "a write to data": ("self.head.weight.data.mul_(2)", r"neither a parameter nor a buffer.*`detach\(\)`"),
    "memory that is not filled": ("x = x + torch.empty(16)", r"as `torch.empty` finds it: use `torch.zeros`"),
    "an unlisted operator": (
        "x = x + torch.linalg.svdvals(x).sum()",
        r"calls aten::linalg_svdvals, which is not in the list of operators",
    ),
    "a large constant": ("x = x + torch.tensor([0.5] * 20000).sum()", r"80,000 bytes of constant.*8,000 are allowed"),
    "a generator": ("g = torch.Generator(); x = x + torch.rand(16, generator=g)", r"remove `generator=`"),
    "a seed": ("torch.manual_seed(1); x = x + torch.rand(16)", r"sets the random seed, which is the run's"),
    "random numbers in evaluation": ("x = x + torch.randn_like(x)", r"only `if self\.training`"),
    "a fixed number of rows": ("x = x.view(3, 32, 16)", r"into a fixed number: use `x\.size\(0\)`"),
    "another fixed number of rows": ("x = x.view(4, 32, 16)", r"is a fixed number here: use `x\.size\(0\)`"),
    "a branch on the number of rows": ("if x.size(0) == 3: x = 2 * x", r"into a fixed number.*no `if`"),
    "a loop over rows": ("x = torch.stack([row for row in x])", r"into a fixed number.*loop over rows"),
    "a gradient of its own": ("x = Round.apply(x)", r"Round is an autograd\.Function.*`x \+ \(y - x\)\.detach\(\)`"),
    "a gradient in the pass": (
        "y = x.detach().requires_grad_(); x = x + torch.autograd.grad((y**3).sum(), y)[0]",
        r"a gradient is computed inside of the pass.*write its formula",
    ),
    "vmap": ("x = torch.vmap(lambda row: row * 2)(x)", r"without torch\.vmap and torch\.func"),
    "torch.cond": ("x = torch.cond(x.sum() > 0, lambda y: y, lambda y: -y, (x,))", r"use `torch\.where`"),
    "a device": ("x = x + torch.ones(16, device='cuda')", r"pass `device=tokens\.device`"),
    "autocast": ("with torch.autocast('cpu', torch.bfloat16): x = x @ x.mT @ x", r"the run's precision decides"),
    "a mistake": ("x = x @ torch.ones(17, 16)", r"RuntimeError: .*\[17, 16\]"),
}
"""A line of `features`, and what the error says after the line's number and text."""

CONSTRUCTOR = {
    "a number of a parameter": ("self.scale = self.head.weight.std().item()", r"a number is read from a tensor"),
    "an unlisted operator": ("self.w = nn.Parameter(torch.linalg.svd(torch.ones(2, 2))[0])", r"not in the list"),
    "a large constant": ("self.register_buffer('t', torch.tensor([0.5] * 20000))", r"80,000 bytes of constant"),
}

UNPLACED = {
    "Python's random numbers": ("", "x = x * random.random()", r"compute different logits.*`random`"),
    "a counter": ("", "CALLS[0] += 1; x = x * CALLS[0]", r"compute different logits.*counters"),
    "a gradient hook": ("", "x.requires_grad and x.register_hook(lambda g: 2 * g)", r"different gradients.*no hooks"),
    "a kept tensor": ("", "self.last = x", r"keeps self\.last for later calls.*no state"),
    "features of another shape": ("", "x = x.sum(1)", r"features returns .* instead of \[rows, 32, width\]"),
    "numpy's random numbers": (
        "self.w = nn.Parameter(torch.from_numpy(numpy.random.randn(4)))",
        "",
        r"other values for w each time.*use torch's random functions",
    ),
    "assigned data": ("self.head.weight.data = torch.randn(64, 16)", "", r"`copy_` under `torch\.no_grad\(\)`"),
    "memory that is not filled": ("self.w = nn.Parameter(torch.empty(4))", "", r"leaves w as `torch\.empty` made it"),
    "a tensor of the file": ("self.w = TABLE", "", r"does not compute w: create it there"),
}
"""Errors that torch raises without a line: constructor, features, error."""


def trace_entry(folder: Path, constructor: str = "", features: str = "") -> Any:
    """Write an entry with these lines to a file, import it and trace it."""
    source = ENTRY.replace("{constructor}", constructor or "pass").replace("{features}", features or "pass")
    path = folder / "entry.py"
    path.write_text(source)
    module = types.ModuleType("traced_entry")
    sys.modules["traced_entry"] = module
    exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 - the test's own text
    architecture: Any = module
    return trace_architecture(architecture, module.Config(64, 32))


def check_error(folder: Path, line: str, reason: str, **lines: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace_entry(folder, **lines)
    message = str(caught.value)
    number = next(
        number for number, text in enumerate((folder / "entry.py").read_text().splitlines(), 1) if text.strip() == line
    )
    assert message.startswith(f"entry.py, line {number} (`{line}`)"), message
    assert re.search(reason, message), message


@pytest.mark.parametrize("name", FEATURES)
def test_untraceable_pass_gets_line_and_advice(name: str, tmp_path: Path) -> None:
    line, reason = FEATURES[name]
    check_error(tmp_path, line, reason, features=line)


@pytest.mark.parametrize("name", CONSTRUCTOR)
def test_untraceable_constructor_gets_line_and_advice(name: str, tmp_path: Path) -> None:
    line, reason = CONSTRUCTOR[name]
    check_error(tmp_path, line, reason, constructor=line)


@pytest.mark.parametrize("name", UNPLACED)
def test_trace_that_differs_from_module_gets_advice(name: str, tmp_path: Path) -> None:
    constructor, features, reason = UNPLACED[name]
    with pytest.raises(TraceError, match=reason):
        trace_entry(tmp_path, constructor, features)


@pytest.mark.parametrize(
    ("constructor", "features"),
    [
        ("nn.init.trunc_normal_(self.head.weight, std=0.02)", ""),
        ("nn.init.orthogonal_(self.head.weight); nn.init.sparse_(self.embedding.weight, 0.5)", ""),
        ("self.head.weight = self.embedding.weight", ""),
        ("self.head.weight.data[0] = 1.0; self.register_buffer('t', torch.tensor([0.5, 0.25]))", "x = x * self.t[0]"),
        ("self.w = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))", "x = self.w(x)"),
        ("self.m = nn.MultiheadAttention(16, 2, batch_first=True)", "x = self.m(x, x, x, need_weights=False)[0]"),
        ("", "y = torch.empty_like(x); y.copy_(x); y[:, 1:] += x[:, :-1]; x = y"),
        ("", "x = x.clone(); x[x > 0] = 0.0"),
        ("", "x = torch.utils.checkpoint.checkpoint(self.head, x, use_reentrant=False)[..., :16]"),
        ("", "y = torch.zeros_like(x)\n        with torch.no_grad(): y[:, 1:] = x[:, :-1]\n        x = x + y"),
        ("", "x = torch.compile(lambda y: y * 2)(x) + x.new_empty(x.shape).bernoulli_(0.5) * self.training"),
    ],
)
def test_usual_constructs_trace_and_equal_the_module(constructor: str, features: str, tmp_path: Path) -> None:
    features = f"{features} if self.training else x * 2" if "bernoulli" in features else features
    trace_entry(tmp_path, constructor, features)
