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
from trainer.errors import ExitCode, UserError, print_error
from trainer.inference.sampling import PROMPTS, Sampler, generate_text
from trainer.models.base import LanguageModel


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompt and what follows; return 2, with one line on standard error, for a run that cannot be used."""
    options = parse_arguments(argv)
    try:
        sampler = build_sampler(options)
        model, tokenizer, context = load_generator(options)
    except UserError as error:
        return print_error("dailytrain sample", error, ExitCode.USER_ERROR)
    sys.stdout.write(options.prompt)
    for piece in generate_text(model, tokenizer, options.prompt, sampler, tokens=options.tokens, context=context):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain sample", description="Have a run's model write.")
    parser.add_argument("--prompt", default=PROMPTS[0], help="what it goes on from (%(default)r)")
    add_generation_flags(parser, tokens=100)
    return parser.parse_args(argv)


def add_generation_flags(parser: argparse.ArgumentParser, tokens: int) -> None:
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


def build_sampler(options: argparse.Namespace) -> Sampler:
    """Raises UserError for numbers that make no sense."""
    if options.tokens < 0:
        raise UserError("--tokens cannot be negative")
    return Sampler(options.temperature, options.top_k, options.top_p, options.seed)


def load_generator(options: argparse.Namespace) -> tuple[LanguageModel, Tokenizer, int]:
    """Return the run's model, its tokenizer and how many tokens it can see. Raises UserError."""
    device = torch.device(resolve_device(options.device))
    model = load_model(options.run, options.checkpoint, "cpu" if options.load else device)
    if options.load:
        from trainer.ops.quantize import quantize

        model = quantize(model, options.load, device)
    tokenizer = load_tokenizer(options.run / "tokenizer.json")
    return model, tokenizer, int(read_run(options.run)["model"]["sequence_length"])
