"""The precision: bf16 on a GPU that supports it, the faster measured one on a CPU."""

from __future__ import annotations

import pytest
import torch

from trainer.distributed.devices import DeviceError
from trainer.training import precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def measured_anew() -> None:
    precision.choose_precision.cache_clear()


@pytest.mark.parametrize(("fp32", "bf16", "chosen"), [(1.0, 3.0, "fp32"), (3.0, 1.0, "bf16"), (1.2, 1.0, "fp32")])
def test_precision_on_cpu_is_bf16_only_if_much_faster(
    fp32: float, bf16: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([fp32, bf16] * precision.REPEATS)
    monkeypatch.setattr(precision, "measure_seconds", lambda work: next(times))
    assert precision.choose_precision(CPU, 1) == chosen


@pytest.mark.parametrize(("supported", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_precision_on_cuda_is_bf16_where_supported_untimed(
    supported: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return supported or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    monkeypatch.setattr(precision, "measure_seconds", lambda work: pytest.fail("a GPU is not timed"))
    assert precision.choose_precision(torch.device("cuda"), 1) == chosen


def test_precision_is_measured_once_without_side_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    first = precision.choose_precision(CPU, 1)
    assert torch.equal(before, torch.get_rng_state())
    monkeypatch.setattr(precision, "measure_seconds", lambda work: pytest.fail("measured again"))
    assert precision.choose_precision(CPU, 1) == first


def test_fp8_without_gpu_is_rejected() -> None:
    with pytest.raises(DeviceError, match="fp8 needs a GPU"):
        precision.check_fp8("cpu")
