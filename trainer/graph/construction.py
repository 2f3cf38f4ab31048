"""Record what a constructor computes.

The constructor runs on tensors without data (`FakeTensorMode`), so it costs no memory and cannot compute anything that
depends on values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.graph.export import NOT_LISTED, OWN_GENERATOR, Exporter, TraceError, encode_value, refuse_untraceable
from trainer.graph.operators import is_allowed
from trainer.graph.schema import Call, Graph, Initialization, StoredTensor


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
