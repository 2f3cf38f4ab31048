"""Server of the model's logits: `python -m trainer.scoring.model_process`, started by the scorer in the sandbox.

It runs the entry's code, so the scorer trusts nothing it reports. It loads the model from its safetensors, reads token
ids from shared memory, writes logits to shared memory, and reports which call it answered. It never sees the targets,
has no writable storage and no network, and its output is dropped.
"""

from __future__ import annotations

import argparse
import mmap
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import trainer
from trainer.scoring.channel import COST, REPLY, REQUEST, ReplyStatus, SharedMemoryLayout

if TYPE_CHECKING:
    from torch import Tensor, nn


def main(argv: list[str] | None = None) -> int:
    options = parse_arguments(argv)
    if options.models is not None:
        # The entry's files take precedence; modules that they lack are imported from our own package.
        trainer.__path__.insert(0, str(options.models / "trainer"))
    control = socket.socket(fileno=options.control)
    layout = SharedMemoryLayout(options.positions, options.vocabulary)
    memory = mmap.mmap(options.memory, layout.size())
    try:
        model = load_model(options.run, options.checkpoint)
    except Exception:
        control.send(REPLY.pack(0, ReplyStatus.COULD_NOT_LOAD))
        raise
    control.send(REPLY.pack(0, ReplyStatus.LOADED))
    serve_requests(model, control, memory, layout)
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.scoring.model_process")
    parser.add_argument("--control", type=int, required=True, help="descriptor of the socket")
    parser.add_argument("--memory", type=int, required=True, help="descriptor of the shared memory")
    parser.add_argument("--positions", type=int, required=True)
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--models", type=Path, help="a folder with a trainer/ package whose files come first")
    return parser.parse_args(argv)


def load_model(run: Path, checkpoint: Path) -> nn.Module:
    """Return the model in float32 and evaluation mode, with TF32 off so that all matrix products round equally.

    The scorer has compared the files with the manifest. A scoring node has no optimizer state, so none is loaded.
    """
    import torch

    from trainer.checkpoint.store import load_checkpoint_weights, read_run
    from trainer.models import load_architecture

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    record = read_run(run)
    module = load_architecture(record["arch"])
    model = module.Model(module.Config(**record["model"]))
    load_checkpoint_weights(checkpoint, model)
    return model.eval().float()


def serve_requests(model: nn.Module, control: socket.socket, memory: mmap.mmap, layout: SharedMemoryLayout) -> None:
    """Answer requests until the scorer closes the socket."""
    import torch

    tokens_memory = torch.frombuffer(memory, dtype=torch.int64, count=layout.positions)
    logits_memory = torch.frombuffer(memory, dtype=torch.float32, offset=layout.logits_offset())
    while request := control.recv(REQUEST.size):
        call, rows, length = REQUEST.unpack(request)
        if rows == 0:
            cost = count_training_cost(model, tokens_memory[:length].clone())
            logits_memory.view(torch.uint8)[: COST.size] = torch.frombuffer(bytearray(cost), dtype=torch.uint8)
            control.send(REPLY.pack(call, ReplyStatus.COUNTED))
            continue
        tokens = tokens_memory[: rows * length].view(rows, length).clone()
        status, logits = compute_logits(model, tokens, layout.vocabulary)
        if logits is not None:
            logits_memory[: logits.numel()].view(logits.shape).copy_(logits)
        control.send(REPLY.pack(call, status))


def compute_logits(model: nn.Module, tokens: Tensor, vocabulary: int) -> tuple[ReplyStatus, Tensor | None]:
    """Return logits [rows, length, vocabulary] of int64 `tokens` [rows, length], or the reason why there are none."""
    import torch

    try:
        with torch.inference_mode():
            logits = model(tokens)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 (seen only with --show-model-output)
        return ReplyStatus.RAISED, None
    if not isinstance(logits, torch.Tensor) or logits.shape != (*tokens.shape, vocabulary) or logits.is_complex():
        return ReplyStatus.WRONG_SHAPE, None
    return ReplyStatus.ANSWERED, logits


def count_training_cost(model: nn.Module, row: Tensor) -> bytes:
    """Return the training cost per token of this row, packed as `COST`."""
    from trainer.accounting import flops, plausibility

    numbers = flops.count_parameters(model)
    try:
        counted = flops.count_flops(model.train(), row[None])
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 (seen only with --show-model-output)
        counted = flops.FlopCount(0.0, plausibility.FAILED)
    void = plausibility.VOID_REASONS.index(counted.void)
    return COST.pack(counted.per_token, numbers["total"], numbers["embedding"], void)


if __name__ == "__main__":
    sys.exit(main())
