"""Bytes per parameter of a model that is loaded for inference: `python -m benchmarks.load_sizes [--arch rwkv5-430m]`.

One untrained checkpoint is loaded in each precision. Printed are the bytes of all tensors of the model's state.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import torch

from trainer.checkpoint.store import get_checkpoint_path, load_model, write_checkpoint
from trainer.models import load_architecture
from trainer.ops.quantize import quantize

PRECISIONS = ("32bit", "16bit", "8bit", "4bit")


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes per parameter of a model that is loaded for inference.")
    parser.add_argument("--arch", default="rwkv5-430m")
    parser.add_argument("--vocabulary", type=int, default=65_536)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_run(Path(folder), options.arch, options.vocabulary)
        lines = [f"{options.arch}, {parameters:,} parameters", "", "|load|bytes|bytes a parameter|", "|---|---|---|"]
        for load in PRECISIONS:
            size = measure_bytes(Path(folder), load)
            lines.append(f"|{load}|{size / 1e6:,.0f} MB|{size / parameters:.2f}|")
    sys.stdout.write("\n".join(lines) + "\n")


def write_run(folder: Path, arch: str, vocabulary: int) -> int:
    """Write a run with one checkpoint; return its number of parameters."""
    module = load_architecture(arch)
    config = module.Config.sized(4, vocabulary, 512)
    with torch.device("meta"):
        model = module.Model(config)
    model = model.to_empty(device="cpu")  # zeros: only sizes are measured
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    write_checkpoint(get_checkpoint_path(folder, 1), model, None, {"step": 1})
    (folder / "run.json").write_text(json.dumps({"arch": arch, "model": dataclasses.asdict(config)}))
    return sum(parameter.numel() for parameter in model.parameters())


def measure_bytes(run: Path, load: str) -> int:
    model = load_model(run, dtype=torch.float32 if load == "32bit" else torch.bfloat16)
    if load in ("8bit", "4bit"):
        model = quantize(model, load, torch.device("cpu"))
    tensors = (value for value in model.state_dict().values() if isinstance(value, torch.Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


if __name__ == "__main__":
    main()
