"""A model whose linear layers bitsandbytes has quantized to 8 and 4 bits, beside the same model in bf16."""

from __future__ import annotations

import copy

import torch

from benchmarks.gpu.stage import (
    compute_error,
    emit,
    get_device,
    is_rehearsal,
    measure_ms,
    report_failure,
    wait_for_turn,
)
from trainer.errors import UserError
from trainer.models import load_architecture
from trainer.ops.quantize import QuantizedPrecision, import_bitsandbytes, quantize

PRECISIONS: tuple[QuantizedPrecision, ...] = ("8bit", "4bit")
NOISE = 0.02  # added to all weights, since branches begin at zero


def measure_quantized() -> None:
    """Bytes, error of the logits, and milliseconds for a row and for a single token."""
    try:
        import_bitsandbytes()
    except UserError as error:
        emit(skipped=str(error))
        return
    device, (depth, length) = get_device(), (2, 64) if is_rehearsal() else (12, 2048)
    torch.manual_seed(0)
    module = load_architecture("gpt")
    model = module.Model(module.Config.sized(depth, 512 if is_rehearsal() else 32768, length)).bfloat16()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(NOISE * torch.randn_like(parameter))
    tokens = torch.randint(0, 512, (1, length), device=device)
    wait_for_turn()
    exact = copy.deepcopy(model).to(device).eval()
    with torch.inference_mode():
        wanted = exact(tokens)
        measure_model("bf16", exact, tokens, 0.0)
        for precision in PRECISIONS:
            with report_failure(precision):
                found = quantize(copy.deepcopy(model), precision, device)
                measure_model(precision, found, tokens, compute_error(found(tokens), wanted))


def measure_model(name: str, model: torch.nn.Module, tokens: torch.Tensor, error: float) -> None:
    size = sum(value.nbytes for value in model.state_dict().values() if isinstance(value, torch.Tensor))
    row, token = measure_ms(lambda: model(tokens)), measure_ms(lambda: model(tokens[:, :1]))
    emit(weights=name, bytes=size, error=error, row_ms=round(row, 2), token_ms=round(token, 2))
