"""Seed the global random number generators, and save and restore their states."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.ops.devices import get_gpu_random_states, set_gpu_random_states


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def get_random_state() -> dict[str, Any]:
    """Return the state of every global random number generator, as JSON values."""
    kind, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [state.numpy().tobytes().hex() for state in get_gpu_random_states()],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(tensor_from_hex(state["torch"]))
    if state["cuda"]:
        set_gpu_random_states([tensor_from_hex(text) for text in state["cuda"]])


def tensor_from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
