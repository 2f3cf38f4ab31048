"""`dailytrain sample RUN --prompt TEXT`: have a trained model write, word by word."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.checkpoint.store import load_model, read_run
from trainer.cli.parser import Parser, add_device_flag, resolve_device
from trainer.data.tokenizer import Tokenizer
from trainer.data.tokenizer_spec import load_tokenizer
from trainer.inference.sampling import PROMPTS, Sampler, written
from trainer.models.base import LanguageModel


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompt and what follows; return 2, with one line on standard error, for a run that cannot be used."""
    options = arguments(argv)
    try:
        sampler = sampler_of(options)
        model, tokenizer, context = opened(options)
    except ValueError as error:
        sys.stderr.write(f"dailytrain sample: {' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write(options.prompt)
    for piece in written(model, tokenizer, options.prompt, sampler, tokens=options.tokens, context=context):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain sample", description="Have a run's model write.")
    parser.add_argument("--prompt", default=PROMPTS[0], help="what it goes on from (%(default)r)")
    add_writing_flags(parser, tokens=100)
    return parser.parse_args(argv)


def add_writing_flags(parser: argparse.ArgumentParser, tokens: int) -> None:
    """What every command needs that has a run's model write."""
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--tokens", type=int, default=tokens, help="at most so many (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest each time (%(default)s)")
    parser.add_argument("--top-k", type=int, help="draw among so many of the likeliest tokens (all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw among the likeliest of this probability (1)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same text (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="folder of one checkpoint (the latest)")
    add_device_flag(parser, default="cpu")
    parser.add_argument("--load", choices=("8bit", "4bit"), help="smaller weights, through bitsandbytes")


def sampler_of(options: argparse.Namespace) -> Sampler:
    """Raises ValueError for numbers that make no sense."""
    if options.tokens < 0:
        raise ValueError("--tokens cannot be negative")
    return Sampler(options.temperature, options.top_k, options.top_p, options.seed)


def opened(options: argparse.Namespace) -> tuple[LanguageModel, Tokenizer, int]:
    """Return the run's model, its tokenizer and how many tokens it can see. Raises ValueError."""
    device = torch.device(resolve_device(options.device))
    model = load_model(options.run, options.checkpoint, "cpu" if options.load else device)
    if options.load:
        from trainer.ops.quantize import quantize

        model = quantize(model, options.load, device)
    tokenizer = load_tokenizer(options.run / "tokenizer.json")
    return model, tokenizer, int(read_run(options.run)["model"]["sequence_length"])
