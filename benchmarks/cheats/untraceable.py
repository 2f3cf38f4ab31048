"""Cheats that leave what a graph can hold."""

from __future__ import annotations

import base64
import ctypes
import json
import pickle
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cheats.base import WIDTH, Case, Config, Files, Model, T, cases_from, vary, vary_features


@torch.library.custom_op("cheats::product", mutates_args=())
def multiply_in_kernel(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


@multiply_in_kernel.register_fake
def describe_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(x)


multiply_in_kernel.register_autograd(lambda context, gradient: (gradient, None))


def multiply_in_numpy(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return x + torch.from_numpy(x.detach().numpy() @ model.mix.weight.detach().numpy())


def write_by_address(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    ctypes.memset(x.data_ptr(), 0, 4)
    return x


def keep_state(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    model.seen.add_(1)
    return x + model.seen


def count_calls(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    model.calls = getattr(model, "calls", 0) + 1
    return x * model.calls


def read_old_memory(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return x + torch.empty(tokens.size(0), T, WIDTH)


def skip_while_exported(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    if torch.compiler.is_exporting() or isinstance(x, torch._subclasses.FakeTensor):
        return x
    return torch.tanh(x @ model.mix.weight)


def loop_until_small(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    while x.abs().max() > 0.1:
        x = x / 2
    return x


def add_seen(self: Model, config: Config) -> None:
    Model.__init__(self, config)
    self.register_buffer("seen", torch.zeros(WIDTH))


def train_in_constructor(self: Model, config: Config) -> None:
    Model.__init__(self, config)
    optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
    self.logits(self.features(torch.zeros(1, T, dtype=torch.int64))).square().mean().backward()
    optimizer.step()


def draw_own_numbers(self: Model, config: Config) -> None:
    Model.__init__(self, config)
    nn.init.normal_(self.mix.weight, generator=torch.Generator().manual_seed(7))


def read_heldout_file(self: Model, config: Config) -> None:
    Model.__init__(self, config)
    with torch.no_grad():
        self.mix.weight.copy_(torch.from_file(__file__, size=WIDTH * WIDTH, dtype=torch.uint8).view(WIDTH, WIDTH))


def keep_state_in_features(self: Model, tokens: Tensor) -> Tensor:
    return keep_state(self, Model.features(self, tokens), tokens)


def call_unlisted(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return torch.special.bessel_j0(x)


def convolve_unlisted(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    rows = x.transpose(0, 1).contiguous()
    return torch.conv_tbc(rows, torch.ones(3, WIDTH, WIDTH), torch.zeros(WIDTH), 1).transpose(0, 1)


def carry_text(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return x + torch.tensor(list(range(40_000)))[:WIDTH]


def draw_in_evaluation(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def hold_references(self: Model, config: Config) -> None:
    """Hold 40,000 bytes as the order of the tensors that one call of the constructor gets."""
    Model.__init__(self, config)
    values = torch.arange(256.0).unbind()
    self.table = nn.Parameter(torch.stack(random.Random(0).choices(values, k=40_000)))


TRACED = {
    "works in a kernel of its own": lambda m, x, t: multiply_in_kernel(x, m.mix.weight),
    "works in numpy": multiply_in_numpy,
    "writes memory by its address": write_by_address,
    "calls an operator that is not in the list": call_unlisted,
    "calls conv_tbc, which no counter knows": convolve_unlisted,
    "is shallow while it is traced": skip_while_exported,
    "reads memory that others left": read_old_memory,
    "draws from Python's random numbers": lambda m, x, t: x * random.random(),
    "draws random numbers in evaluation": draw_in_evaluation,
    "branches on a value": lambda m, x, t: x * 2 if x.sum() > 0 else x,
    "loops until a value is small": loop_until_small,
    "selects by value": lambda m, x, t: x + x[x > 0].sum(),
    "carries held-out text as a constant": carry_text,
    "pads by the length of the text": lambda m, x, t: F.pad(x, (0, 0, 0, int((t == 0).sum())))[:, :T],
}


def replace_operator(files: Files) -> Files:
    return {name: data.replace(b'"aten::tanh"', b'"aten::from_file"') for name, data in files.items()}


def replace_by_pickle(files: Files) -> Files:
    return {**files, "init.json": pickle.dumps({"tensors": []})}


def claim_fewer_parameters(files: Files) -> Files:
    return {**files, "init.json": files["init.json"].replace(b"[16,16]", b"[4,4]").replace(b"[16, 16]", b"[4, 4]")}


def replace_by_attribute(files: Files) -> Files:
    return {name: data.replace(b'"aten::tanh"', b'"aten::tanh.__setattr__"') for name, data in files.items()}


def claim_longer_rows(files: Files) -> Files:
    old, new = f'"batch",{T}]'.encode(), f'"batch",{4 * T}]'.encode()
    return {name: data.replace(old, new, 1) for name, data in files.items()}


def add_constants(files: Files) -> Files:
    table = json.loads(files["init.json"])
    data = base64.b64encode(bytes(100_000)).decode()
    table["constants"]["text"] = {"dtype": "uint8", "shape": [100_000], "data": data}
    return {**files, "init.json": json.dumps(table).encode()}


CASES = [
    *cases_from({name: vary_features(change) for name, change in TRACED.items()}, "does not trace"),
    *cases_from(
        {
            "keeps state between passes": lambda: vary(features=keep_state_in_features, __init__=add_seen),
            "trains in the constructor": lambda: vary(__init__=train_in_constructor),
            "carries held-out text as the order of references": lambda: vary(__init__=hold_references),
            "draws its weights from a seed of its own": lambda: vary(__init__=draw_own_numbers),
            "reads a file in the constructor": lambda: vary(__init__=read_heldout_file),
        },
        "does not trace",
    ),
    Case("counts its calls", "no effect", vary_features(count_calls)),  # tracing freezes the number
    Case("names an unlisted operator in its files", "does not load", vary, replace_operator),
    Case("sends a pickle instead of JSON", "does not load", vary, replace_by_pickle),
    Case("claims fewer parameters in its files", "does not load", vary, claim_fewer_parameters),
    Case("names an attribute of Python as an operator in its files", "does not load", vary, replace_by_attribute),
    Case("claims longer rows in its files", "does not load", vary, claim_longer_rows),
    Case("adds held-out text to its files as constants", "does not load", vary, add_constants),
]
