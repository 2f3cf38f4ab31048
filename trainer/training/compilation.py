"""Compile the model with torch.compile, and cache the compiled code.

Two functions are compiled, each as one graph for fixed shapes: tokens to features, and a chunk of features to its loss.
With `fsdp` and `zero2` each block is compiled, since weights are gathered between blocks. So are blocks of recurrent
modules and of large graphs, equal blocks once, so that the time does not grow with the depth. It is reported as
`compile_seconds` and not charged to the budget.

The cache is in $DAILYTRAIN_CACHE, else below the home folder, else (as in a sandbox) in a temporary folder. A node's
jobs do not share it: it holds machine code, and one entry could replace another's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch

from trainer.config.resolve import ResolvedConfig
from trainer.data.dataset import get_cache_folder
from trainer.graph.blocks import count_calls, has_split_blocks, split_blocks
from trainer.graph.model import GraphModel
from trainer.ops.compiler import raise_recompile_limit
from trainer.training.objective import Objective

MAX_CALLS = 2000
"""Calls in a graph that is compiled as a whole. The compiler's time grows with them, to half an hour for rwkv5 at depth
24. A block of `gpt` has about 34; a recurrent model's has more for each chunk of a row."""
MAX_BLOCKS = 64  # that differ in a graph; torch's own limit is 8
HOPPER = 9  # compute capability
BACKEND = "inductor"  # tests use `aot_eager`, which generates no code and needs no compiler


def has_compiler(device: str) -> bool:
    """Return whether torch.compile can run: on a CPU it needs a C++ compiler."""
    return device == "cuda" or any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def is_writable(folder: Path) -> bool:
    """Return whether this process can create this folder or write to it."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return os.access(existing, os.W_OK)


def set_cache_folder() -> None:
    """Set the cache folder unless the environment does. Before torch imports its compiler, which sets a default."""
    folder = get_cache_folder().parent / "compiled"
    if not is_writable(folder):
        folder = Path(tempfile.gettempdir()) / "dailytrain-compiled"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))


def compile_objective(objective: Objective, resolved: ResolvedConfig, fullgraph: bool = True) -> None:
    """Compile the objective's functions at their first call. `fullgraph`: raise at a graph break."""
    model, options = objective.model, {"dynamic": False, "fullgraph": fullgraph, "backend": BACKEND}
    if resolved.is_sharded or not model.bounded:
        for block in model.repeated_blocks():
            block.compile(dynamic=False, backend=BACKEND)
    elif isinstance(model, GraphModel) and is_large(model):
        raise_recompile_limit(MAX_BLOCKS)
        for passes in model.traced_passes.values():
            for block in split_blocks(passes.features.module):
                block.compile(**options)
    else:
        objective.features = torch.compile(model.features, **options)
    objective.chunk_loss = torch.compile(objective.compute_chunk_loss, **options)


def is_large(model: GraphModel) -> bool:
    """Return whether a graph's blocks are compiled instead of the whole, which would take too long."""
    module = model.traced_passes[True].features.module
    return has_split_blocks(module) or count_calls(module.graph, module) > MAX_CALLS


def choose_optimizer_backend(resolved: ResolvedConfig) -> str | None:
    """Return torch.compile's backend for the steps of Muon and of tables; None on CPUs and for sharded weights, where
    they are not compiled."""
    return BACKEND if resolved.compile and resolved.device == "cuda" and not resolved.is_sharded else None


def is_graph_break(error: BaseException) -> bool:
    """Return whether this is what `fullgraph` raises."""
    return isinstance(error, torch._dynamo.exc.TorchDynamoException)
