"""The argument parser of all commands."""

from __future__ import annotations

import argparse
from typing import NoReturn

from trainer.errors import ExitCode


class Parser(argparse.ArgumentParser):
    """Report a wrong command line in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USER_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")
