"""`dailytrain sample RUN --prompt TEXT`: generate text with a run's model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.checkpoint.store import load_model, read_run
from trainer.cli import Parser, add_device_flag, resolve_device
from trainer.data.tokenizer import Tokenizer, load_tokenizer
from trainer.errors import UserError
from trainer.inference.sampling import PROMPTS, Sampler, generate_text
from trainer.models.base import LanguageModel


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompt and its continuation. Raise `UserError` for a run that cannot be used."""
    parser = Parser(prog="dailytrain sample", description="Generate text with a run's model.")
    parser.add_argument("--prompt", default=PROMPTS[0], help="text to continue (%(default)s)")
    add_generation_flags(parser, max_tokens=100)
    options = parser.parse_args(argv)
    sampler = build_sampler(options)
    model, tokenizer, context = load_generator(options)
    sys.stdout.write(options.prompt)
    for piece in generate_text(model, tokenizer, options.prompt, sampler, tokens=options.max_tokens, context=context):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def add_generation_flags(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """Add the arguments of all commands that generate text with a run's model."""
    add = parser.add_argument
    add("run", type=Path, help="folder of a run")
    add_sampling_flags(parser, max_tokens)
    add("--checkpoint", type=Path, help="folder of one checkpoint (the latest)")
    add_device_flag(parser, default="cpu")
    add("--load", choices=("16bit", "8bit", "4bit"), help="weights in bf16, or quantized with bitsandbytes too (fp32)")


def add_sampling_flags(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """Add the arguments that sampling needs."""
    add = parser.add_argument
    add("--max-tokens", type=int, default=max_tokens, metavar="N", help="generate at most this many (%(default)s)")
    add("--temperature", type=float, default=0.8, help="0 takes the most likely token each time (%(default)s)")
    add("--top-k", type=int, help="sample among this many of the most likely tokens (all)")
    add("--top-p", type=float, default=1.0, help="sample among the most likely tokens of this total probability (1)")
    add("--seed", type=int, default=0, help="the same seed gives the same text (%(default)s)")


def build_sampler(options: argparse.Namespace) -> Sampler:
    """Return the sampler; raise `UserError` for impossible values."""
    if options.max_tokens < 0:
        raise UserError("--max-tokens cannot be negative")
    return Sampler(options.temperature, options.top_k, options.top_p, options.seed)


def load_generator(options: argparse.Namespace) -> tuple[LanguageModel, Tokenizer, int]:
    """Return the run's model, its tokenizer and its context in tokens. Raise `UserError`."""
    device = torch.device(resolve_device(options.device))
    is_quantized = options.load in ("8bit", "4bit")
    dtype = torch.bfloat16 if options.load else torch.float32
    model = load_model(options.run, options.checkpoint, "cpu" if is_quantized else device, dtype)
    if is_quantized:
        from trainer.ops.quantize import quantize

        model = quantize(model, options.load, device)
    tokenizer = load_tokenizer(options.run / "tokenizer.json")
    return model, tokenizer, int(read_run(options.run)["model"]["sequence_length"])
