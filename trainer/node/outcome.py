"""How a job ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.protocol import Cause


@dataclass(frozen=True)
class JobOutcome:
    outcome: Literal["done", "failed", "released"]
    reason: str = ""
    cause: Cause = "infrastructure"
    result: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    """Small files of the `out` folder that stay with the job."""


class JobFailedError(Exception):
    """The job cannot go on, in a sentence that its contributor understands."""

    def __init__(self, reason: str, cause: Cause = "infrastructure") -> None:
        super().__init__(reason)
        self.cause: Cause = cause


class JobInterruptedError(Exception):
    """Somebody wishes the job to stop; `Wishes` knows who."""
