"""`dailytrain logits RUN --tokens 1,2,3`: what a model expects after each token, to compare it with other programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoint.store import load_model, read_run
from trainer.cli.parser import Parser, add_device_flag, resolve_device


def main(argv: Sequence[str] | None = None) -> int:
    """Print log-probabilities (base e); return 2, with one line on standard error, for a run or tokens of no use."""
    options = arguments(argv)
    try:
        vocabulary_size = int(read_run(options.run)["model"]["vocabulary_size"])
        tokens = parse(options.tokens, vocabulary_size)
        found = log_probabilities(options, tokens)
    except ValueError as error:
        sys.stderr.write(f"dailytrain logits: {' '.join(str(error).split())}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps({"log_probabilities": found.tolist()}) + "\n")
        return 0
    for token, row in zip(tokens, found, strict=True):
        best = row.topk(min(5, vocabulary_size))
        likely = ", ".join(f"{after} {value:.4f}" for value, after in zip(*map(Tensor.tolist, best), strict=True))
        sys.stdout.write(f"after {token}: {likely}\n")
    return 0


def parse(text: str, vocabulary_size: int) -> list[int]:
    """Read token ids joined by commas."""
    try:
        tokens = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--tokens are whole numbers joined by commas, not {text!r}") from None
    strange = next((token for token in tokens if not 0 <= token < vocabulary_size), None)
    if strange is not None:
        raise ValueError(f"there is no token {strange}: the vocabulary's are 0 to {vocabulary_size - 1}")
    return tokens


@torch.inference_mode()
def log_probabilities(options: argparse.Namespace, tokens: list[int]) -> Tensor:
    """Return `[T, V]`: one row after each token, normalised in fp64."""
    device = resolve_device(options.device)
    model = load_model(options.run, options.checkpoint, device)
    return model(torch.tensor([tokens], device=device))[0].double().log_softmax(-1)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain logits", description="What a run's model expects after tokens.")
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--tokens", required=True, help="token ids, joined by commas")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--checkpoint", type=Path, help="folder of one checkpoint (the latest)")
    add_device_flag(parser, default="cpu")
    return parser.parse_args(argv)
