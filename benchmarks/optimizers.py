"""Time and memory of an optimizer's step over one model: the recipe's own, AdamW for everything, AdamW in 8 bits.

`python -m benchmarks.optimizers --device cuda`: `gpt` at depth 12 with a vocabulary of 50304. 8 bits need bitsandbytes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

import torch

from trainer.models import load_architecture
from trainer.models.base import LanguageModel, Recipe
from trainer.optim import optimizers as optim

REPEATS = 5


def measure_step(model: LanguageModel, recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Return seconds of the fastest step and the bytes of the optimizer's state."""
    optimizers = optim.build_optimizers(model, recipe)
    fastest = float("inf")
    for _ in range(REPEATS):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        synchronize(device)
        started = time.perf_counter()
        for optimizer in optimizers:
            optimizer.step()
        synchronize(device)
        fastest = min(fastest, time.perf_counter() - started)
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    tensors = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    return {"seconds": fastest, "state_bytes": sum(tensor.nbytes for tensor in tensors)}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def all_by(recipe: Recipe, optimizer: str) -> Recipe:
    """Return the recipe with one optimizer for all groups."""
    changed = (dataclasses.replace(group, optimizer=optimizer, normalized=False) for group in recipe.groups)
    return dataclasses.replace(recipe, groups=tuple(changed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    module = load_architecture("gpt")
    config = module.Config.sized(2, 8192, 64) if options.smoke else module.Config.sized(12, 50304, 1024)
    model = module.Model(config).to(device)
    recipe = module.recipe(config)
    recipes = {"recipe": recipe, "adamw": all_by(recipe, "adamw"), "adamw8bit": all_by(recipe, "adamw8bit")}
    found: dict[str, dict[str, Any]] = {}
    for name, chosen in recipes.items():
        try:
            found[name] = measure_step(model, chosen, device)
        except (ValueError, ImportError) as error:
            found[name] = {"error": str(error)}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    sys.stdout.write(json.dumps({"parameters": parameters, "optimizers": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
