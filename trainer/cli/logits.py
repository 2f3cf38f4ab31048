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
from trainer.errors import ExitCode, UserError, print_error


def main(argv: Sequence[str] | None = None) -> int:
    """Print log-probabilities (base e); return 2, with one line on standard error, for a run or tokens of no use."""
    options = parse_arguments(argv)
    try:
        vocabulary_size = int(read_run(options.run)["model"]["vocabulary_size"])
        tokens = parse_tokens(options.tokens, vocabulary_size)
        found = compute_log_probabilities(options, tokens)
    except UserError as error:
        return print_error("dailytrain logits", error, ExitCode.USER_ERROR)
    if options.json:
        sys.stdout.write(json.dumps({"log_probabilities": found.tolist()}) + "\n")
        return 0
    for token, row in zip(tokens, found, strict=True):
        best = row.topk(min(5, vocabulary_size))
        likely = ", ".join(f"{after} {value:.4f}" for value, after in zip(*map(Tensor.tolist, best), strict=True))
        sys.stdout.write(f"after {token}: {likely}\n")
    return 0


def parse_tokens(text: str, vocabulary_size: int) -> list[int]:
    """Read token ids joined by commas."""
    try:
        tokens = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--tokens are whole numbers joined by commas, not {text!r}") from None
    strange = next((token for token in tokens if not 0 <= token < vocabulary_size), None)
    if strange is not None:
        raise UserError(f"there is no token {strange}: the vocabulary's are 0 to {vocabulary_size - 1}")
    return tokens


@torch.inference_mode()
def compute_log_probabilities(options: argparse.Namespace, tokens: list[int]) -> Tensor:
    """Return `[T, V]`: one row after each token, normalised in fp64."""
    device = resolve_device(options.device)
    model = load_model(options.run, options.checkpoint, device)
    return model(torch.tensor([tokens], device=device))[0].double().log_softmax(-1)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain logits", description="What a run's model expects after tokens.")
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--tokens", required=True, help="token ids, joined by commas")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--checkpoint", type=Path, help="folder of one checkpoint (the latest)")
    add_device_flag(parser, default="cpu")
    return parser.parse_args(argv)
