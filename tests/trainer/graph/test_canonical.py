"""The canonical hash: the same for another way to write an architecture, another one for another model."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cheats.base import WIDTH, Config, Model, T, V, vary
from trainer.graph.canonical import compute_canonical_hash, count_patterns
from trainer.graph.files import TracedArchitecture
from trainer.graph.reading import parse_files
from trainer.graph.trace import trace_architecture
from trainer.models import gpt, rwkv5
from trainer.models.base import ParameterGroup, Recipe


def trace(**methods: Any) -> TracedArchitecture:
    return trace_architecture(vary(**methods), Config(V, T))  # type: ignore[arg-type]


def hash_varied(**methods: Any) -> str:
    return compute_canonical_hash(trace(**methods))


def average(x: Tensor) -> Tensor:
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]


# --- written otherwise ------------------------------------------------------------------------------------------------


def rename(self: Any, config: Config) -> None:
    nn.Module.__init__(self)
    self.config = config
    self.unused = nn.Linear(3, 3)
    self.words = nn.Embedding(config.vocabulary_size, config.width)
    self.inner = nn.Linear(config.width, config.width, bias=False)
    self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)


def write_otherwise(self: Any, tokens: Tensor) -> Tensor:
    x = self.words(tokens)
    torch.relu(self.inner(x))  # used by nothing
    y = average(x) + x.contiguous()[:, :]
    return torch.tanh(self.inner(y.view(-1, T, 2, WIDTH // 2).reshape(-1, WIDTH)))[None].view(-1, T, WIDTH)


def write(self: Any, tokens: Tensor) -> Tensor:
    x = self.embedding(tokens)
    return torch.tanh(self.mix((x + average(x)).reshape(-1, WIDTH)))[None].reshape(-1, T, WIDTH)


def test_names_operand_order_views_and_unused_calls_do_not_count() -> None:
    assert hash_varied(__init__=rename, features=write_otherwise) == hash_varied(features=write)


@pytest.mark.parametrize("architecture", [gpt, rwkv5])
def test_order_of_tensors_and_calls_and_names_does_not_count(architecture: Any) -> None:
    size = {"width": 32, "heads": 2} if architecture is gpt else {"width": 64}
    traced = trace_architecture(architecture, architecture.Config(V, T, depth=2, **size))
    files = {name: json.loads(content) for name, content in traced.to_files().items()}
    chance = random.Random(1)
    for _ in range(3):
        shuffled = copy.deepcopy(files)
        init = shuffled["init.json"]
        pairs = list(zip(init["tensors"], init["graph"]["outputs"], strict=True))
        chance.shuffle(pairs)
        init["tensors"], init["graph"]["outputs"] = map(list, zip(*pairs, strict=True))
        for passes in (shuffled["train.json"], shuffled["eval.json"]):
            for part in ("features", "logits"):
                reorder(passes[part], chance)
        changed = parse_files({name: json.dumps(content).encode() for name, content in shuffled.items()})
        assert changed.compute_hash() != traced.compute_hash()
        assert compute_canonical_hash(changed) == compute_canonical_hash(traced)
        assert count_patterns(changed) == count_patterns(traced)


def reorder(graph: dict[str, Any], chance: random.Random) -> None:
    """Put the calls into another order in which each comes after those whose results it takes."""

    def find_numbers(value: Any) -> set[int]:
        if isinstance(value, list | dict):
            return {
                each for item in (value.values() if isinstance(value, dict) else value) for each in find_numbers(item)
            }
        return {int(value[1:])} if isinstance(value, str) and value[:1] == "%" and value[1:].isdecimal() else set()

    def renumber(value: Any) -> Any:
        if isinstance(value, list):
            return [renumber(item) for item in value]
        if isinstance(value, dict):
            return {name: renumber(item) for name, item in value.items()}
        return f"%{order.index(*find_numbers(value))}" if find_numbers(value) else value

    needs = [find_numbers([call["arguments"], call.get("keywords", {})]) for call in graph["calls"]]
    order: list[int] = []
    while len(order) < len(needs):
        order.append(chance.choice([n for n in range(len(needs)) if n not in order and needs[n] <= set(order)]))
    calls = [graph["calls"][number] for number in order]
    graph["calls"] = [
        call
        | {"arguments": renumber(call["arguments"])}
        | ({"keywords": renumber(call["keywords"])} if "keywords" in call else {})
        for call in calls
    ]
    graph["outputs"] = renumber(graph["outputs"])


# --- another model ----------------------------------------------------------------------------------------------------


def define_init(change: Callable[[Any], None]) -> Callable[[Any, Config], None]:
    def construct(self: Any, config: Config) -> None:
        Model.__init__(self, config)
        self.other = nn.Linear(WIDTH, WIDTH, bias=False)
        change(self)

    return construct


def tie(self: Any) -> None:
    self.other.weight = self.mix.weight


def copy_weight(self: Any) -> None:
    with torch.no_grad():
        self.other.weight.copy_(self.mix.weight)


def draw_small(self: Any) -> None:
    nn.init.uniform_(self.other.weight, -0.1, 0.1)


def use_two(self: Any, tokens: Tensor) -> Tensor:
    x = self.embedding(tokens)
    return torch.tanh(self.mix(x) + self.other(average(x)))


def swap_two(self: Any, tokens: Tensor) -> Tensor:
    x = self.embedding(tokens)
    return torch.tanh(self.mix(average(x)) + self.other(x))


def swap_operands(self: Any, tokens: Tensor) -> Tensor:
    x = self.embedding(tokens)
    return torch.tanh(self.mix(average(x) - x))


def subtract(self: Any, tokens: Tensor) -> Tensor:
    x = self.embedding(tokens)
    return torch.tanh(self.mix(x - average(x)))


def drop_once(self: Any, tokens: Tensor) -> Tensor:
    dropped = F.dropout(Model.features(self, tokens), 0.1, self.training)
    return dropped * dropped


def drop_twice(self: Any, tokens: Tensor) -> Tensor:
    x = Model.features(self, tokens)
    return F.dropout(x, 0.1, self.training) * F.dropout(x, 0.1, self.training)


def read_before_writing(self: Any, tokens: Tensor) -> Tensor:
    x = Model.features(self, tokens) + 0
    y = x + 1
    x.mul_(2)
    return x + y


def read_after_writing(self: Any, tokens: Tensor) -> Tensor:
    x = Model.features(self, tokens) + 0
    x.mul_(2)
    return x + (x + 1)


def scale_in_training(self: Any, tokens: Tensor) -> Tensor:
    x = Model.features(self, tokens)
    return 2 * x if self.training else x


def make_recipe(**changes: Any) -> Callable[[Config], Recipe]:
    return lambda config: Recipe((ParameterGroup("all", ("*",), "adamw", **{"learning_rate": 1e-3} | changes),))


MODELS: dict[str, dict[str, Any]] = {
    "honest": {},
    "rate": {"recipe": make_recipe(learning_rate=2e-3)},
    "two": {"__init__": define_init(lambda self: None), "features": use_two},
    "tied": {"__init__": define_init(tie), "features": use_two},
    "copied": {"__init__": define_init(copy_weight), "features": use_two},
    "smaller draw": {"__init__": define_init(draw_small), "features": use_two},
    "smaller draw of the other": {"__init__": define_init(draw_small), "features": swap_two},
    "minus": {"features": subtract},
    "minus, turned": {"features": swap_operands},
    "dropout once": {"features": drop_once},
    "dropout twice": {"features": drop_twice},
    "read, written": {"features": read_before_writing},
    "written, read": {"features": read_after_writing},
    "training only": {"features": scale_in_training},
}


def test_other_models_have_other_hashes_and_equal_ones_the_same() -> None:
    hashes = {name: hash_varied(**methods) for name, methods in MODELS.items()}
    assert len({*hashes.values()}) == len(MODELS), hashes
    # Which of two equal layers is called `mix` does not matter.
    assert hash_varied(__init__=define_init(lambda self: None), features=swap_two) == hashes["two"]


def test_patterns_ignore_numbers_and_show_what_was_added() -> None:
    honest, other_rate = count_patterns(trace()), count_patterns(trace(**MODELS["rate"]))
    assert other_rate == honest
    wider = count_patterns(trace_architecture(vary(), Config(V, T, width=2 * WIDTH)))  # type: ignore[arg-type]
    assert wider == honest
    added = count_patterns(trace(features=lambda self, tokens: Model.features(self, tokens).sigmoid()))
    assert sum(added.values()) == sum(honest.values()) + 1
    assert len(added.keys() - honest.keys()) == 1
