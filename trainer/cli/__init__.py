"""The command line: one file per command. The parser of all commands is here."""

from __future__ import annotations

import argparse
from typing import NoReturn

from trainer.errors import ExitCode, UserError


def parse_positive_integer(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


class Parser(argparse.ArgumentParser):
    """Reports an invalid command line in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USER_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_device_flag(parser: argparse.ArgumentParser, default: str = "auto") -> None:
    help = "where to compute; auto: on a GPU if there is one (%(default)s)"
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default=default, help=help)


def resolve_device(name: str) -> str:
    """Return `cpu` or `cuda` for a value of --device."""
    from trainer.ops.devices import is_gpu_available

    if name != "cpu" and not is_gpu_available():
        if name == "cuda":
            raise UserError("--device cuda: torch finds no GPU here")
        return "cpu"
    return "cpu" if name == "cpu" else "cuda"
