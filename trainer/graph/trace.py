"""Trace an architecture: from its module to the four files."""

from __future__ import annotations

import dataclasses
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.errors import to_one_line
from trainer.graph.build import build_constants, check_passes
from trainer.graph.export import (
    NOT_LISTED,
    OWN_GENERATOR,
    Exporter,
    TraceError,
    describe_stack,
    draw_truncated_normal,
    encode_value,
    refuse_untraceable,
    skip_compilation,
)
from trainer.graph.files import (
    Call,
    Graph,
    GraphError,
    Initialization,
    StoredTensor,
    TracedArchitecture,
    check_constant_bytes,
    check_stored_tensors,
)
from trainer.graph.initialization import compute_initial_tensors
from trainer.graph.model import GraphModel, describe_recipe
from trainer.graph.operators import UNINITIALIZED, is_allowed
from trainer.models.base import Architecture, ArchitectureConfig, LanguageModel

# --- the constructor --------------------------------------------------------------------------------------------------
# The constructor runs on tensors without data (`FakeTensorMode`), so it costs no memory and cannot compute anything
# that depends on values.


class ConstructionRecorder(TorchDispatchMode):
    """Records the operators that a constructor calls."""

    def __init__(self, exporter: Exporter) -> None:
        super().__init__()
        self.exporter = exporter
        self.calls: list[Call] = []
        self.references: dict[int, str] = {}  # by the identity of a tensor
        self.alive: list[Tensor] = []  # no identity is used twice while its tensor lives

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Reading a number has succeeded, so it is known without data: `nn.init.trunc_normal_` reads its bounds.
        if func.name().startswith("prim::") or func is torch.ops.aten._local_scalar_dense.default:
            return result
        if not is_allowed(func.name()):
            raise TraceError(f"the constructor calls {func.name()}{NOT_LISTED}")
        if (kwargs or {}).get("generator") is not None:
            raise TraceError(f"the constructor {OWN_GENERATOR}")
        self.record(func.name(), args, kwargs or {}, result)
        return result

    def record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        arguments = tuple(self.encode(value) for value in args)
        keywords = {key: self.encode(value) for key, value in kwargs.items() if key not in ("pin_memory", "generator")}
        number = len(self.calls)
        self.calls.append(Call(name, arguments, keywords or None))
        if isinstance(result, Tensor):
            self.add_reference(result, f"%{number}")
        elif isinstance(result, list | tuple):
            for position, item in enumerate(result):
                if isinstance(item, Tensor) and id(item) not in self.references:
                    self.add_reference(item, f"%{len(self.calls)}")
                    self.calls.append(Call("result::item", (f"%{number}", position)))

    def add_reference(self, tensor: Tensor, reference: str) -> None:
        if id(tensor) not in self.references:
            self.references[id(tensor)] = reference
            self.alive.append(tensor)

    def encode(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self.references:
                if isinstance(value, FakeTensor):
                    raise TraceError("the constructor uses a tensor that was made outside of it")
                self.add_reference(value, self.exporter.add_constant(value, "the constructor"))
            return self.references[id(value)]
        if isinstance(value, list | tuple):
            return [self.encode(item) for item in value]
        return encode_value(value, lambda: "the constructor")


def record_construction(
    build: Callable[[], nn.Module], mode: FakeTensorMode, exporter: Exporter
) -> tuple[nn.Module, Initialization]:
    """Run a constructor without data; return its module, whose tensors belong to `mode`, and what it computed."""
    recorder = ConstructionRecorder(exporter)
    with mode, recorder, refuse_untraceable():
        module = build()
    stored = list_stored_tensors(module)
    outputs = []
    for description, tensor in stored:
        if id(tensor) not in recorder.references:
            raise TraceError(f"the constructor does not compute {description.name}: create it there with torch")
        outputs.append(recorder.references[id(tensor)])
    # Calls without a use stay: those that draw random numbers shift the later ones.
    graph = Graph((), tuple(recorder.calls), tuple(outputs))
    return module, Initialization(tuple(description for description, _ in stored), graph, exporter.constants)


def list_stored_tensors(module: nn.Module) -> list[tuple[StoredTensor, Tensor]]:
    """Return a module's parameters and buffers, each once, with the other names under which it stands."""
    saved = set(module.state_dict())
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for each in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in each:
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
    return [
        (
            StoredTensor(
                names[key][0],
                get_kind(tensor, names[key][0] in saved),
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                tuple(names[key][1:]),
            ),
            tensor,
        )
        for key, tensor in tensors.items()
    ]


def get_kind(tensor: Tensor, is_saved: bool) -> Literal["parameter", "buffer", "non_persistent_buffer"]:
    if isinstance(tensor, nn.Parameter):
        return "parameter"
    return "buffer" if is_saved else "non_persistent_buffer"


MAX_VERIFIED_ELEMENTS = 100_000_000
"""Elements of stored tensors up to which the recorded constructor is compared with the real one in memory."""
MAX_VERIFIED_PRODUCTS = 20_000_000_000
"""Products of elements and positions up to which the passes are compared too, which takes seconds."""
MAX_VERIFIED_LOGITS = 2**23  # of a row; likewise
VERIFICATION_SEED = 20


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
    traced = TracedArchitecture(initialization, passes[0], passes[1], describe_recipe(module.recipe(config), config))
    check_stored_tensors(traced.initialization)
    check_constant_bytes(traced)
    check_passes(traced)
    with explain_errors("in the module"):
        verify_trace(traced, lambda: module.Model(config), exporter)
    return traced


@contextmanager
def explain_errors(place: str) -> Iterator[None]:
    """Turn what torch raises while it traces into a `TraceError` with the source line and what to write instead."""
    try:
        yield
    except GraphError as error:
        line = describe_stack(read_stack(error))
        message = str(error) if not line or line in str(error) else f"{line}: {error}"
        raise TraceError(message) from error
    except Exception as error:
        from trainer.graph.advice import find_advice

        line = describe_stack(read_stack(error)) or place
        message = f"{type(error).__name__}: {to_one_line(error)}"
        reason = find_advice(f"{message} {line}") or message[:300]
        raise TraceError(f"{line}: {reason}") from error


def read_stack(error: BaseException) -> str:
    """Return the printed stack of an error, and of those that it was raised from."""
    return "".join(traceback.format_exception(error))


def verify_trace(traced: TracedArchitecture, build: Callable[[], LanguageModel], exporter: Exporter) -> None:
    """Raise `TraceError` unless the graphs compute what the module does, from one seed, on random tokens.

    This finds what leaves no trace: Python's and numpy's random numbers, state between calls, `torch.empty`.
    """
    elements = sum(tensor.number_of_elements for tensor in traced.initialization.tensors)
    if elements > MAX_VERIFIED_ELEMENTS:
        return
    with (
        torch.random.fork_rng(devices=[]),
        fill_uninitialized_memory(),
        mock.patch.object(torch, "compile", skip_compilation),
    ):
        torch.manual_seed(VERIFICATION_SEED)
        with torch.device("cpu"), mock.patch.object(nn.init, "_no_grad_trunc_normal_", draw_truncated_normal):
            model = build()
        torch.manual_seed(VERIFICATION_SEED)
        replayed = compute_initial_tensors(traced.initialization)
        verify_initialization(model, replayed)
        length = traced.recipe["sequence_length"]
        logits = length * traced.recipe["vocabulary_size"]
        if elements * length <= MAX_VERIFIED_PRODUCTS and logits <= MAX_VERIFIED_LOGITS:
            graph = GraphModel(traced, {**replayed, **build_constants(traced.initialization)})
            for is_training in (True, False):
                verify_pass(model.train(is_training), graph.train(is_training), traced, exporter)


@contextmanager
def fill_uninitialized_memory() -> Iterator[None]:
    """Context manager: `torch.empty` returns NaN, and largest values for integers."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def verify_initialization(model: nn.Module, replayed: Mapping[str, Tensor]) -> None:
    """Compare a module with the recorded constructor's tensors."""
    real = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in replayed.items():
        if torch.equal(tensor, real[name].detach()):
            continue
        if real[name].isnan().any():
            raise TraceError(f"the constructor leaves {name} as `torch.empty` made it: use `torch.zeros`, or fill it")
        raise TraceError(
            f"the constructor computes other values for {name} each time, or sets them outside of torch:"
            " use torch's random functions, and `copy_` under `torch.no_grad()` instead of assigning `.data`"
        )


def verify_pass(model: LanguageModel, graph: GraphModel, traced: TracedArchitecture, exporter: Exporter) -> None:
    """Compare logits and, in training, gradients of a module and its graph."""
    size = (2, traced.recipe["sequence_length"])
    tokens = torch.randint(traced.recipe["vocabulary_size"], size)
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    results = []
    for each in (model, graph):
        torch.manual_seed(VERIFICATION_SEED)
        with torch.set_grad_enabled(model.training):
            logits = each.logits(each.features(tokens)).float()
        if model.training:
            each.zero_grad(set_to_none=True)
            F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        results.append({"logits": logits.detach(), **{name: p.grad for name, p in each.named_parameters()}})
    for name, tensor in model.state_dict().items():
        if not torch.equal(tensor, before[name]):
            raise TraceError(f"the forward pass changes {name}: a pass writes to no parameter and no buffer")
    for name, value in results[0].items():
        other = results[1][name]
        if value is other or (value is not None and other is not None and is_close(value, other)):
            continue
        passes = traced.training if model.training else traced.evaluation
        calls = [*passes.features.iterate_calls(), *passes.logits.iterate_calls()]
        empty = next((call for call in calls if call.name.removeprefix("aten::") in UNINITIALIZED), None)
        if empty is not None and value is not None and value.isnan().any():
            raise TraceError(
                f"{exporter.describe_call(empty)} uses memory as `torch.empty` finds it: use `torch.zeros`, or fill it"
            )
        raise TraceError(
            f"in {'training' if model.training else 'evaluation'}, the module and its graph compute different"
            f" {'logits' if name == 'logits' else 'gradients of ' + name}. A graph holds no numbers of Python or numpy"
            " (`random`, counters), nothing kept between calls and no hooks: use torch's operators on the arguments of"
            " the pass"
        )


def is_close(value: Tensor, other: Tensor) -> bool:
    return value.shape == other.shape and torch.allclose(value, other, rtol=1e-3, atol=1e-5, equal_nan=True)
