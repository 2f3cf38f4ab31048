"""Every path of `trainer.ops.attention` equals the definition, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.attention
from torch import Tensor

from tests.trainer.ops.varlen_kernel import register_varlen_kernel
from trainer.graph.model import build_model
from trainer.graph.trace import trace_architecture
from trainer.models import load_architecture
from trainer.ops import attention as attention_module
from trainer.ops.attention import (
    attention,
    describe_kernels,
    find_document_boundaries,
    force_reference,
    reference_attention,
    select_path,
)

pytestmark = pytest.mark.processes

DEVICES = [
    pytest.param(("cpu", torch.float32), id="cpu"),
    pytest.param(("cuda", torch.float32), id="cuda-fp32", marks=pytest.mark.gpu),
    pytest.param(("cuda", torch.bfloat16), id="cuda-bf16", marks=pytest.mark.gpu),
]
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 12 + [4] * 7, [2] * 24])


@pytest.fixture(params=DEVICES)
def target(request: pytest.FixtureRequest) -> tuple[torch.device, torch.dtype]:
    device, dtype = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device(device), dtype


def inputs(
    queries: int, target: tuple[torch.device, torch.dtype] = (torch.device("cpu"), torch.float32)
) -> list[Tensor]:
    device, dtype = target
    generator = torch.Generator().manual_seed(queries)
    return [
        torch.randn(2, 3, length, 16, generator=generator).to(device, dtype).requires_grad_()
        for length in (queries, 24, 24)
    ]


@pytest.mark.parametrize("queries", [24, 7, 1])
@pytest.mark.parametrize("window", [None, 1, 5, 24, 1000])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_paths_equal_reference(
    queries: int, window: int | None, masked: bool, target: tuple[torch.device, torch.dtype]
) -> None:
    documents = DOCUMENTS.to(target[0]) if masked else None
    tolerance = 1e-5 if target[1] == torch.float32 else 3e-2
    assert_equals_reference(inputs(queries, target), tolerance, window=window, documents=documents)


def test_reference_attention_equals_definition() -> None:
    query, key, value = (tensor.detach() for tensor in inputs(24))
    answer = reference_attention(query, key, value, window=5, documents=DOCUMENTS)
    # Row 0, position 18: the second token of document 4 sees itself and the first.
    seen = slice(17, 19)
    weights = (key[0, :, seen] @ query[0, :, 18, :, None] / math.sqrt(16)).softmax(1)
    torch.testing.assert_close(answer[0, :, 18], (weights * value[0, :, seen]).sum(1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda q, k, v: (q, k[:1], v[:1], None, None), "rows, heads and width"),
        (lambda q, k, v: (q, k[:, :1], v[:, :1], None, None), "rows, heads and width"),
        (lambda q, k, v: (q[..., :8], k, v, None, None), "rows, heads and width"),
        (lambda q, k, v: (q, k[:, :, :9], v[:, :, :9], None, None), "no fewer keys than queries"),
        (lambda q, k, v: (q, k, v[:1], None, None), "key and value of one shape"),
        (lambda q, k, v: (q[0], k[0], v[0], None, None), "four dimensions"),
        (lambda q, k, v: (q, k, v, None, DOCUMENTS[:, :1]), r"documents \[rows, keys\]"),
        (lambda q, k, v: (q, k, v, None, DOCUMENTS[:1]), r"documents \[rows, keys\]"),
        (lambda q, k, v: (q, k, v, 0, None), "window of at least 1"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_at_shapes_that_kernels_do_not_check_raises(change: Any, reason: str, device: str) -> None:
    query, key, value, window, documents = change(*(tensor.to(device) for tensor in inputs(24)))
    with pytest.raises(ValueError, match=reason):
        attention(query, key, value, window=window, documents=documents)


def test_select_path_returns_expected_name() -> None:
    query, key, value = inputs(24)
    assert select_path(query, key) == "sdpa"
    assert select_path(query, key, window=24) == "sdpa"
    assert select_path(query, key, window=23) == "masked sdpa"
    assert select_path(query, key, documents=DOCUMENTS) == "masked sdpa"
    assert select_path(query[:, :, :1], key) == "sdpa"
    assert select_path(query[:, :, :2], key) == "masked sdpa"
    assert describe_kernels(torch.device("cpu")) == "torch's sdpa"
    with force_reference():
        assert select_path(query, key) == "reference"
        assert torch.equal(attention(query, key, value), reference_attention(query, key, value))
    many, one = (
        SimpleNamespace(size=lambda i, count=count: (1, 2, count, 8)[i], is_cuda=True, dtype=torch.bfloat16)
        for count in (16, 1)
    )
    assert (select_path(many, many), select_path(one, many)) == ("sdpa", "sdpa")
    assert select_path(many, many, window=4) == "varlen"


def test_find_document_boundaries_separates_rows() -> None:
    assert find_document_boundaries(DOCUMENTS).tolist() == [0, 5, 17, 24, 48]
    # The same number in two rows is not the same document.
    assert find_document_boundaries(torch.zeros(2, 3, dtype=torch.int64)).tolist() == [0, 3, 6]


@pytest.fixture
def varlen_path(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """`attention` takes the path `varlen`, as on a GPU in 16 bit. Return the types of the queries that reach it."""
    register_varlen_kernel()
    select, seen = attention_module.select_path, []

    def select_as_on_gpu(query: Tensor, key: Tensor, **options: Any) -> str:
        path = select(query, key, **options)
        if path == "masked sdpa":
            seen.append(query.dtype)
            return "varlen"
        return path

    monkeypatch.setattr(attention_module, "select_path", select_as_on_gpu)
    return seen


def assert_equals_reference(tensors: list[Tensor], tolerance: float, **options: Any) -> None:
    ours, theirs = attention(*tensors, **options), reference_attention(*tensors, **options)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    direction = torch.randn_like(ours)
    found, wanted = (torch.autograd.grad(out, tensors, direction) for out in (ours, theirs))
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_varlen_path_equals_reference(window: int | None, masked: bool, varlen_path: list[torch.dtype]) -> None:
    assert_equals_reference(inputs(24), 1e-5, window=window, documents=DOCUMENTS if masked else None)
    assert bool(varlen_path) == (masked or window is not None)


@pytest.mark.parametrize("is_traced", [False, True], ids=["module", "graph"])
def test_gpt_under_autocast_calls_varlen_with_one_dtype(is_traced: bool, varlen_path: list[torch.dtype]) -> None:
    module = load_architecture("gpt")
    config = module.Config(320, 32, depth=4, width=32, heads=2, windows="SSSL", short_window=8)
    model = build_model(trace_architecture(module, config)) if is_traced else module.Model(config)
    varlen_path.clear()
    with torch.autocast("cpu", torch.bfloat16):
        features = model.features(torch.randint(320, (2, 32)))
    features.float().sum().backward()
    assert varlen_path == [torch.bfloat16] * 3, "blocks 0 to 2 have windows"


class FlashPackages:
    """Packages as torch activates them; their kernel is that of `varlen_kernel`, on the CPU, with a defect."""

    def __init__(self, defects: dict[str, Callable[..., Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.active: str | None = None
        self.defects = defects
        varlen = attention_module.varlen_attention

        def attend(*arguments: Any) -> Tensor:
            return self.defects[str(self.active)](varlen(*arguments), *arguments)

        register_varlen_kernel()
        for name, value in (
            ("activate_flash_attention_impl", self.activate),
            ("current_flash_attention_impl", lambda: self.active),
            ("restore_flash_attention_impl", self.restore),
        ):
            monkeypatch.setattr(torch.nn.attention, name, value)
        monkeypatch.setattr(attention_module.devices, "get_generation", lambda _: 9)
        monkeypatch.setattr(attention_module, "varlen_attention", attend)
        monkeypatch.setattr(attention_module, "_is_flash_2_active", False)
        monkeypatch.setattr(attention_module, "HAS_FLASH_ATTENTION_2", False)
        monkeypatch.setattr(attention_module, "_refused_flash", {})

    def activate(self, name: str) -> None:
        if name not in self.defects:
            raise ModuleNotFoundError(name)
        if isinstance(self.defects[name], Exception):
            raise self.defects[name]
        self.active = name

    def restore(self, _raise_warn: bool = True) -> None:
        self.active = None


def refuse_backward(out: Tensor, *_: Any) -> Tensor:
    def refuse(_: Tensor) -> None:
        raise NotImplementedError("windowed attention not supported")

    out.register_hook(refuse)
    return out


def ignore_window(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any) -> Tensor:
    return reference_attention(query, key, value)


def refuse_heads_of_64(out: Tensor, query: Tensor, *_: Any) -> Tensor:
    if query.size(3) == 64:
        raise RuntimeError("This flash attention build does not support head dim 64")
    return out


def test_flash_package_is_tried_with_the_heads_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = FlashPackages({"FA3": refuse_heads_of_64}, monkeypatch)
    for sizes, chosen in (({128}, "FA3"), ({64}, None), ({64, 128}, None), ({128}, "FA3"), (set(), None)):
        assert attention_module.activate_flash_attention(torch.device("cpu"), sizes) == packages.active == chosen
    attention_module.activate_flash_attention(torch.device("cpu"), {64})
    assert "heads of 64: RuntimeError" in describe_kernels(torch.device("cuda"))


@pytest.mark.parametrize(
    ("defects", "chosen", "refused"),
    [
        ({"FA4": lambda out, *_: out}, "FA4", {}),
        ({"FA4": refuse_backward}, None, {"FA4": "windowed attention not supported"}),
        ({"FA3": ignore_window, "FA4": lambda out, *_: out}, "FA4", {"FA3": "differs from the definition"}),
        ({"FA3": ImportError("undefined symbol: _ZN3c10")}, None, {"FA3": "undefined symbol"}),
        ({"FA3": OSError("libcudart.so.12: cannot open")}, None, {"FA3": "libcudart.so.12"}),
    ],
    ids=["right", "no backward", "wrong", "of another torch", "of another system"],
)
def test_flash_package_that_fails_with_windows_is_not_used(
    defects: dict[str, Any], chosen: str | None, refused: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = FlashPackages(defects, monkeypatch)
    assert attention_module.activate_flash_attention(torch.device("cpu"), {16}) == packages.active == chosen
    described = describe_kernels(torch.device("cuda"))
    assert described.startswith(f"torch's sdpa for full layers, else varlen with {chosen or 'FA2'}")
    for name, reason in refused.items():
        assert f"{name} is installed and not used" in described
        assert reason in described


@pytest.mark.parametrize("defect", [None, ImportError("undefined symbol"), RuntimeError("head dimension")], ids=str)
def test_flash_attention_2_is_used_only_if_it_is_right(
    defect: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        if defect is not None:
            raise defect
        return reference_attention(query, key, value, window=window)

    FlashPackages({}, monkeypatch)
    monkeypatch.setattr(attention_module, "HAS_FLASH_ATTENTION_2", True)
    monkeypatch.setattr(attention_module, "flash_attention_2", attend)
    on_gpu: Any = SimpleNamespace(size=lambda i: (1, 2, 16, 8)[i], is_cuda=True, dtype=torch.bfloat16)
    assert select_path(on_gpu, on_gpu, window=4) == "varlen", "before its trial"
    chosen = None if defect else "flash-attn 2"
    assert attention_module.activate_flash_attention(torch.device("cpu"), {16}) == chosen
    assert select_path(on_gpu, on_gpu, window=4) == (chosen or "varlen")
    wanted = f"used: heads of 16: {type(defect).__name__}: {defect}" if defect else "varlen with FA2, flash-attn 2"
    assert wanted in describe_kernels(torch.device("cuda"))
