"""What the sponsor reads on standard error."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def console() -> Console:
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def say(sentence: str, style: str = "") -> None:
    """One line with the time of day. `style`: rich's, for a terminal."""
    console().print(time.strftime("%H:%M:%S"), sentence, style=style or None)
