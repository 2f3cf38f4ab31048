"""Quantized weights for inference."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from trainer.cli.main import main
from trainer.models import load_architecture
from trainer.ops.quantize import QuantizedPrecision, quantize


def test_sample_in_16_bits_writes_text_and_8_bits_need_a_package(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", str(tiny_run), "--load", "16bit", "--max-tokens", "5", "--prompt", "The"]) == 0
    assert capsys.readouterr().out.startswith("The")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert main(["sample", str(tiny_run), "--load", "8bit"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "pip install 'dailytrain[gpu]'" in err


@pytest.mark.parametrize(("load", "factor", "tolerance"), [("8bit", 4, 0.1), ("4bit", 8, 0.5)])
@torch.no_grad()
def test_quantized_logits_are_close_to_originals(
    load: QuantizedPrecision, factor: int, tolerance: float, caplog: pytest.LogCaptureFixture
) -> None:
    module = load_architecture("gpt")
    torch.manual_seed(0)
    model = module.Model(module.Config.sized(2, 300, 32)).eval()
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
    tokens = torch.randint(0, 300, (1, 32))
    before, matrix = model(tokens), model.get_parameter("blocks.0.mlp.up.weight")
    size = matrix.numel() * matrix.element_size()
    small = quantize(model, load, torch.device("cpu"))
    matrix = small.get_parameter("blocks.0.mlp.up.weight")
    assert size == factor * matrix.numel() * matrix.element_size()
    for name in ("head", "embedding"):
        assert small.get_parameter(f"{name}.weight").dtype == torch.int8
    assert (small(tokens) - before).abs().max() < tolerance * before.std()
    assert not caplog.records  # it would repeat for each token
