"""Trace an architecture: from its module to the four files."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.errors import to_one_line
from trainer.graph.build import build_function
from trainer.graph.export import Exporter, TraceError, describe_stack
from trainer.graph.initialization import compute_initial_tensors, record_construction
from trainer.graph.schema import GraphError, Initialization, TracedArchitecture
from trainer.models.base import Architecture, ArchitectureConfig, LanguageModel, ParameterGroup, Recipe, Schedule

MAX_VERIFIED_ELEMENTS = 500_000_000
"""Of stored tensors. Up to this the recorded constructor is compared with the real one, which needs their memory."""
VERIFICATION_SEED = 20

ADVICE = {
    r"DataDependentOutput|GuardOnDataDependent|aten\._local_scalar_dense|could not (guard|extract)": (
        "a number is read from a tensor (`.item()`, `int(x)`, `if x > 0`), and a graph is the same for all values: "
        "use `torch.where`, or compute with the tensor itself"
    ),
    r"DynamicOutputShape|aten\.nonzero|aten\.unique|masked_select|boolean": (
        "the shape of a result depends on values (`nonzero`, `unique`, `x[mask]`), and shapes in a graph are fixed: "
        "use `torch.where` or multiply by the mask"
    ),
    r"ConstraintViolation|[Ss]pecializ": (
        "the number of rows or positions became a fixed number: use `x.size(0)` or `unflatten`, not "
        "its value in the example"
    ),
    r"numpy|__array__": "a tensor leaves torch for numpy, which a graph cannot hold: use torch's function of that name",
}
"""Patterns of torch's messages -> what to write instead."""


def trace_architecture(module: Architecture, config: ArchitectureConfig) -> TracedArchitecture:
    """Return the graphs and the recipe of an architecture at one size. Raises `TraceError`."""
    exporter, mode = Exporter(), FakeTensorMode()
    with explain_errors("in the constructor"):
        model, initialization = record_construction(lambda: module.Model(config), mode, exporter)
    assert isinstance(model, LanguageModel)
    passes = []
    for is_training in (True, False):
        model.train(is_training)
        with explain_errors("in the forward pass"):
            passes.append(exporter.export_passes(model, mode, config.sequence_length))
    initialization = dataclasses.replace(initialization, constants=exporter.constants)
    verify_initialization(initialization, lambda: module.Model(config))
    traced = TracedArchitecture(initialization, passes[0], passes[1], describe_recipe(module.recipe(config), config))
    check_passes(traced)
    return traced


def check_passes(traced: TracedArchitecture) -> None:
    """Raise `GraphError` unless the graphs can be built: they write to nothing stored, and evaluation is not random."""
    for passes, allow_random in ((traced.training, True), (traced.evaluation, False)):
        for graph in (passes.features, passes.logits):
            build_function(graph, allow_random=allow_random)


@contextmanager
def explain_errors(place: str) -> Iterator[None]:
    """Turn what torch raises while it traces into a `TraceError` with the source line and what to write instead."""
    try:
        yield
    except TraceError:
        raise
    except Exception as error:
        line = describe_stack(read_stack(error)) or place
        message = f"{type(error).__name__}: {to_one_line(error)}"
        reason = next((advice for pattern, advice in ADVICE.items() if re.search(pattern, message)), message[:300])
        raise TraceError(f"{line}: {reason}") from error


def read_stack(error: BaseException) -> str:
    """Return the printed stack of an error, and of those that it was raised from."""
    return "".join(traceback.format_exception(error))


def verify_initialization(initialization: Initialization, build: Callable[[], nn.Module]) -> None:
    """Raise `TraceError` unless the recorded constructor and the real one compute the same bits from one seed."""
    if sum(tensor.number_of_elements for tensor in initialization.tensors) > MAX_VERIFIED_ELEMENTS:
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(VERIFICATION_SEED)
        with torch.device("cpu"):
            model = build()
        torch.manual_seed(VERIFICATION_SEED)
        replayed = compute_initial_tensors(initialization)
    real = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in replayed.items():
        if not torch.equal(tensor, real[name].detach()):
            raise TraceError(
                f"the constructor computes other values for {name} each time, or sets them outside of torch:"
                " use torch's random functions, and `copy_` under `torch.no_grad()` instead of assigning `.data`"
            )


def describe_recipe(recipe: Recipe, config: ArchitectureConfig) -> dict[str, Any]:
    """Return the recipe and the sizes as plain data."""
    return {
        "vocabulary_size": config.vocabulary_size,
        "sequence_length": config.sequence_length,
        "model": dataclasses.asdict(config),  # type: ignore[call-overload]
        "recipe": dataclasses.asdict(recipe),
    }


def read_recipe(traced: TracedArchitecture) -> Recipe:
    """Return the recipe of a traced architecture. Raises `GraphError`."""
    try:
        table = dict(traced.recipe["recipe"])
        groups = [
            ParameterGroup(**{**group, "match": tuple(group["match"]), "betas": tuple(group["betas"])})
            for group in table["groups"]
        ]
        return Recipe(**{**table, "groups": tuple(groups), "schedule": Schedule(**table["schedule"])})
    except (KeyError, TypeError, ValueError) as error:
        raise GraphError(f"recipe.json is not a recipe: {to_one_line(error)}") from error
