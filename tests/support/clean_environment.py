"""The environment of a program that a test starts without the developer's own variables."""

from __future__ import annotations

import os

KEPT = ("PATH", "COVERAGE_PROCESS_CONFIG")  # the second one makes `make coverage` measure the program, too


def build_clean_environment(**variables: str) -> dict[str, str]:
    """Return `KEPT` of this process, and the given variables."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | variables
