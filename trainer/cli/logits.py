"""`dailytrain logits RUN --tokens 1,2,3`: print a model's predictions, to compare it with other programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoint.store import load_model, read_run
from trainer.cli import Parser, add_device_flag, resolve_device
from trainer.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Print log-probabilities (base e). Raise `UserError` for a run or tokens that cannot be used."""
    options = parse_arguments(argv)
    vocabulary_size = int(read_run(options.run)["model"]["vocabulary_size"])
    tokens = parse_tokens(options.tokens, vocabulary_size)
    log_probabilities = compute_log_probabilities(options, tokens)
    if options.json:
        sys.stdout.write(json.dumps({"log_probabilities": log_probabilities.tolist()}) + "\n")
        return 0
    for token, row in zip(tokens, log_probabilities, strict=True):
        best = row.topk(min(5, vocabulary_size))
        likely = ", ".join(f"{after} {value:.4f}" for value, after in zip(*map(Tensor.tolist, best), strict=True))
        sys.stdout.write(f"after {token}: {likely}\n")
    return 0


def parse_tokens(text: str, vocabulary_size: int) -> list[int]:
    """Parse token ids separated by commas."""
    try:
        tokens = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--tokens must be integers separated by commas, not {text!r}") from None
    unknown = next((token for token in tokens if not 0 <= token < vocabulary_size), None)
    if unknown is not None:
        raise UserError(f"there is no token {unknown}: the vocabulary's are 0 to {vocabulary_size - 1}")
    return tokens


@torch.inference_mode()
def compute_log_probabilities(options: argparse.Namespace, tokens: list[int]) -> Tensor:
    """Return `[T, V]`: one row after each token, normalized in fp64."""
    device = resolve_device(options.device)
    model = load_model(options.run, options.checkpoint, device)
    length = int(read_run(options.run)["model"]["sequence_length"])
    if model.bounded and len(tokens) > length:
        raise UserError(f"--tokens has {len(tokens)} tokens, and this model reads at most {length}")
    return model(torch.tensor([tokens], device=device))[0].double().log_softmax(-1)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain logits", description="Print the most likely next tokens after each token.")
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--tokens", required=True, help="token ids, separated by commas")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--checkpoint", type=Path, help="folder of one checkpoint (the latest)")
    add_device_flag(parser, default="cpu")
    return parser.parse_args(argv)
