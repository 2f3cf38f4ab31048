"""torch.compile: what is translated, where the result is kept, and how long it took.

Two pieces are translated, each whole (no breaks) and for fixed shapes: tokens to features, and a chunk of features to
nats. With `fsdp` and `zero2` it is each block, since weights are gathered between them. The time is ours: measured,
reported as `compile_seconds`, and not charged to the budget.

What was translated is kept in a folder and found again by the next process: in $DAILYTRAIN_CACHE, else below the home
folder, else (as in a sandbox) in a temporary one. A node's jobs do not share it: it holds machine code, which one
entry's code could exchange for the next one's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch

from trainer.config.resolve import ResolvedConfig
from trainer.data.dataset import get_cache_folder
from trainer.training.objective import Objective

BACKEND = "inductor"
"""What makes code of a translated graph. Tests take `aot_eager`, which makes none and needs no compiler."""


def has_compiler(device: str) -> bool:
    """Is there what torch.compile needs? On a CPU that is a C++ compiler."""
    return device == "cuda" or any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def is_writable(folder: Path) -> bool:
    """May this process make or fill this folder?"""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return os.access(there, os.W_OK)


def set_cache_folder() -> None:
    """Choose the folder, unless the environment has. torch names its own there as soon as inductor is imported."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") not in (None, default_cache_dir()):
        return
    lasting = get_cache_folder().parent / "compiled"
    folder = lasting if is_writable(lasting) else Path(tempfile.gettempdir()) / "dailytrain-compiled"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


def compile_objective(objective: Objective, resolved: ResolvedConfig, whole: bool = True) -> None:
    """Have the objective's pieces translated at their first use. `whole`: raise where a piece would break in two."""
    model = objective.model
    if resolved.is_sharded:
        for block in model.repeated_blocks():
            block.compile(dynamic=False, backend=BACKEND)
    else:
        objective.features = torch.compile(model.features, dynamic=False, fullgraph=whole, backend=BACKEND)
    objective.nats = torch.compile(objective.of_chunk, dynamic=False, fullgraph=whole, backend=BACKEND)


def is_graph_break(error: BaseException) -> bool:
    """Is this what `whole` is refused with?"""
    return isinstance(error, torch._dynamo.exc.TorchDynamoException)
