"""The options that commands comparing recipes share, and how they end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from trainer.data.dataset import Dataset, prepare_dataset
from trainer.data.sizes import parse_size
from trainer.errors import UserError

TEXT = "text/gutenberg/train-*.jsonl.xz"  # in $DAILYTRAIN_DATA


def build_parser(description: str | None, results: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default=None, help="as for `dailytrain train`; computed: Gutenberg")
    parser.add_argument("--tokenizer", default="bpe:4096")
    parser.add_argument("--limit-bytes", default="48MiB")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all budgets")
    parser.add_argument("--out", type=Path, default=results)
    return parser


def prepare_text(options: argparse.Namespace) -> Dataset:
    """Return the dataset of the options. Raises `UserError` without text."""
    limit = parse_size(options.limit_bytes)
    return prepare_dataset(options.corpus or find_default_corpus(), options.tokenizer, limit_bytes=limit)


def find_default_corpus() -> str:
    folder = os.environ.get("DAILYTRAIN_DATA")
    if not folder:
        raise UserError(f"set DAILYTRAIN_DATA to the folder of {TEXT}, or name other text with --corpus")
    return f"files:{folder}/{TEXT}"


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its status, or with one line for bad input and for an interruption."""
    try:
        raise SystemExit(main())
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on with the runs that are not finished") from None
