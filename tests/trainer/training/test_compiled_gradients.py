"""Compiled gradients equal eager ones: of every weight of every architecture, and of every operator of our own.

A compiler can compute an exact loss and wrong gradients without a message, so no test of losses shows it. The backend
`aot_eager` traces forward and backward like the one of a GPU, and generates no code. CI also runs this file with the
oldest supported torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.debugging import aot_eager
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

from tests.support.traced_models import build_pair, compute_gradients, compute_loss, sample_rows, trace
from trainer.config.parsing import parse_config
from trainer.config.train_config import resolve_config
from trainer.distributed.devices import build_fabric
from trainer.errors import ExitCode
from trainer.graph.blocks import count_calls, split_blocks
from trainer.graph.model import GraphModel, build_model
from trainer.graph.tables import look_up
from trainer.models import ARCHITECTURES
from trainer.ops import balance, elementwise, recurrence
from trainer.ops.attention import attention
from trainer.ops.ngram_memory import read_ngram_memory
from trainer.training import compilation
from trainer.training.objective import Objective

pytestmark = [
    # Of the compiler, which reads gradients of activations and imports modules that are deprecated.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
]
TOLERANCES = {torch.float32: 5e-4, torch.bfloat16: 5e-2}  # in fp32, the weight of a mixture's smear is the largest
MEMORY = {"memory_rows": 50}
MODELS = [
    pytest.param(
        *(arch, fields, dtype),
        id="-".join([arch, *fields, str(dtype)]),
        marks=[] if (arch, dtype) == ("gpt", torch.float32) else pytest.mark.slow,
    )
    for arch, fields in (*((arch, {}) for arch in ARCHITECTURES), ("gpt", MEMORY))
    for dtype in TOLERANCES
]


@pytest.fixture(autouse=True)
def compile_without_code_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    torch.compiler.reset()


def assert_close(found: Tensor, wanted: Tensor, tolerance: float, name: str) -> None:
    """Compare by norms: a single element may be the difference of large ones."""
    error = float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-12))
    assert error <= tolerance, f"{name}: relative error {error}"


def assert_compiled_equal(objective: Objective, dtype: torch.dtype, arch: str = "gpt") -> dict[str, Tensor]:
    """Compile an objective as a run does and compare its loss and gradients; return those of the compiled one."""
    wanted = compute_gradients(objective, dtype)
    flags = ["--arch", arch, "--train.compile", "true", "--out", "run"]
    compilation.compile_objective(objective, resolve_config(parse_config(flags), "cpu"))
    found = compute_gradients(objective, dtype)
    assert found.keys() == wanted.keys()
    assert len(found) > 3
    for name, gradient in wanted.items():
        assert_close(found[name], gradient, TOLERANCES[dtype], name)
    return found


@pytest.mark.parametrize(("arch", "fields", "dtype"), MODELS)
def test_compiled_gradients_of_architecture_equal_eager_ones(
    arch: str, fields: dict[str, int], dtype: torch.dtype
) -> None:
    found = assert_compiled_equal(Objective(build_pair(arch, **fields).graph), dtype, arch)
    assert ("memory.table" in found) == (fields == MEMORY)


def balance_gates(gates: Tensor) -> Tensor:
    return balance.balance_load(gates.sigmoid(), torch.zeros(gates.shape[-1]), torch.ones(gates.shape[-1]))


def carry_state(x: Tensor) -> Tensor:
    r = x.transpose(1, 2)
    rate, bonus = torch.full((2, r.size(1), 1), 0.3)
    return recurrence.compute_recurrence(r, r, r, rate, bonus, r.new_zeros(r.size(0), r.size(1), 16, 16))[0]


COSINE, SINE = torch.randn(8, 1, 16), torch.randn(8, 1, 8)
GAIN = torch.rand(4) + 0.5
TOKENS = torch.randint(0, 64, (64,))
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention": lambda x: attention(*(3 * [x.transpose(1, 2)])),
    "attention with a window": lambda x: attention(*(3 * [x.transpose(1, 2)]), window=3),
    "norm": elementwise.norm,
    "norm with a gain": lambda x: elementwise.norm(x, GAIN),
    "rotate": lambda x: elementwise.rotate(x, COSINE, SINE),
    "squared_relu": elementwise.squared_relu,
    "softcap": lambda x: elementwise.softcap(x, 15.0),
    "look_up": lambda x: look_up(x.flatten(0, 2), TOKENS),
    "cast_for_autocast": lambda x: elementwise.cast_for_autocast(x).float(),
    "ngram_memory": lambda x: read_ngram_memory(TOKENS.view(8, 8), x, [1, 2]),  # compiled, its rows were read before
    "balance_load": balance_gates,
    "recurrence": lambda x: carry_state(x.float()),
}


def test_gradients_of_all_operators_are_compared() -> None:
    assert {name.removeprefix("dailytrain::") for name in elementwise.LIBRARY._op_defs} <= OPERATORS.keys()


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "recurrence" else []) for n in OPERATORS]
)
def test_compiled_gradient_of_operator_equals_eager_one(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 4, 16, dtype=dtype)
    direction = torch.randn(x.shape)

    def compute(x: Tensor) -> Tensor:
        """As in a model, neither the operator's argument nor its result is the graph's own."""
        return OPERATORS[name](x * 1.5) * 0.5

    results = []
    for function in (compute, torch.compile(compute, backend="aot_eager", fullgraph=True, dynamic=False)):
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        out.backward(direction.view(out.shape).to(out.dtype))
        results.append((out.detach(), leaf.grad))
    (value, gradient), (compiled_value, compiled_gradient) = results
    assert gradient is not None
    assert compiled_gradient is not None
    assert_close(compiled_value, value, TOLERANCES[dtype], "value")
    assert_close(compiled_gradient, gradient, TOLERANCES[dtype], "gradient")


def compile_with_zero_gradients(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend whose losses are right and whose gradients are zeros."""

    def compile_backward(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        return make_boxed_func(lambda *values: [x if x is None else torch.zeros_like(x) for x in graph(*values)])

    return aot_module_simplified(
        module, inputs, fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=compile_backward
    )


@pytest.mark.parametrize("part", ["", "embedding"], ids=["everywhere", "but in the head"])
def test_run_whose_compiled_gradient_is_zero_ends_as_the_machines_fault(
    monkeypatch: pytest.MonkeyPatch, train: Callable[..., int], tmp_path: Path, part: str
) -> None:
    def compile_part(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return (compile_with_zero_gradients if part in module.code else aot_eager)(module, inputs)

    monkeypatch.setattr(compilation, "BACKEND", compile_part)
    assert train(tmp_path, "--train.compile", "true", "--budget", "2steps") == ExitCode.INFRASTRUCTURE
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "infrastructure"
    assert "torch.compile computes wrong gradients" in failure["reason"]
    assert "25% is the tolerance" in failure["reason"]


@pytest.mark.parametrize("function", [elementwise.SquaredReLUFunction, elementwise.RotationFunction])
def test_run_that_loses_the_gradient_of_one_operator_ends_as_the_machines_fault(
    function: Any, monkeypatch: pytest.MonkeyPatch, train: Callable[..., int], tmp_path: Path
) -> None:
    backward = function.backward

    def compute(ctx: Any, gradient: Tensor) -> Any:
        return backward(ctx, gradient * 0 if torch.compiler.is_compiling() else gradient)

    monkeypatch.setattr(function, "backward", staticmethod(compute))
    assert train(tmp_path, "--train.compile", "true", "--budget", "2steps") == ExitCode.INFRASTRUCTURE
    assert "torch.compile computes wrong gradients" in json.loads((tmp_path / "failure.json").read_text())["reason"]


@pytest.mark.parametrize(("arch", "fields", "dtype"), MODELS)
def test_run_with_right_gradients_passes_the_check_and_keeps_its_weights(
    arch: str, fields: dict[str, int], dtype: torch.dtype
) -> None:
    """Also where output projections or a memory start at zero: while it is checked, no gradient is zero."""
    model = build_model(trace(arch, **fields))
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    precision = "fp32" if dtype == torch.float32 else "bf16"
    flags = ["--arch", arch, "--train.compile", "true", "--train.precision", precision, "--out", "run"]
    resolved = resolve_config(
        parse_config([*flags, "--train.micro-batch", "2", "--train.sequence-length", "32"]), "cpu"
    )
    objective, fabric = Objective(model), build_fabric("cpu", 1, "single", precision, None)
    run: Any = SimpleNamespace(resolved=resolved, fabric=fabric, model=model, wrapped=fabric.setup_module(objective))
    compilation.compile_objective(objective, resolved)
    compilation.check_compiled_gradients(run, sample_rows()[0][:1])
    with compilation.move_from_zero(run):
        norms = compilation.measure_gradient_norms(run, [sample_rows()[0]])
    assert [name for name, norm in norms.items() if not norm] == []
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)


def compile_blocks(model: GraphModel) -> list[int]:
    """Compile the blocks of training by a backend that counts; return the list that it appends to."""
    compiled: list[int] = []

    def count(module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        compiled.append(len(module.graph.nodes))
        return module.forward

    for block in split_blocks(model.training_passes.features.module):
        block.compile(dynamic=False, fullgraph=True, backend=count)
    return compiled


@pytest.mark.slow
@pytest.mark.parametrize(("name", "depth", "different"), [("rwkv5", 3, 2), ("gpt", 4, 3)])
def test_split_blocks_compute_the_same_and_equal_ones_compile_once(name: str, depth: int, different: int) -> None:
    """Two kinds differ: the first reads only the embeddings. Each second block of gpt also has value embeddings."""
    model = build_pair(name, depth=depth).graph
    module = model.training_passes.features.module
    calls = count_calls(module.graph, module)
    inputs, targets = sample_rows()
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(compute_loss(model, inputs, targets), parameters, allow_unused=True)
    compiled = compile_blocks(model)
    blocks = split_blocks(module)
    assert list(map(id, split_blocks(module))) == list(map(id, blocks)), "a second split has the same blocks"
    found = torch.autograd.grad(compute_loss(model, inputs, targets), parameters, allow_unused=True)
    assert len(compiled) == different
    assert sum(node.op == "call_module" for node in module.graph.nodes) == depth
    assert count_calls(module.graph, module) < calls
    torch.testing.assert_close(found, wanted)
