"""How a run can end badly, whose fault that is, and the exit code that says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

DONE, INFRASTRUCTURE, USER, MODEL, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes: finished; ours or the machine's fault; bad input; the model's own fault; stopped by a signal."""

LONGEST = 400
"""Characters of a reason: a sentence, not a traceback."""


class ModelFailure(Exception):
    """The architecture or its recipe is at fault; the message is a sentence for its author."""


class Interrupted(Exception):
    """A signal asked the run to stop; a checkpoint has been written."""


@contextmanager
def models_fault(doing: str) -> Iterator[None]:
    """Whatever goes wrong in here is a stranger's code at fault: say what it was doing."""
    try:
        yield
    except ModelFailure:
        raise
    except MemoryError as error:
        raise ModelFailure(f"Out of memory {doing}.") from error
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise ModelFailure(f"Out of GPU memory {doing}: make the model, the batch or the rows smaller.") from error
        said = " ".join(str(error).split())[:LONGEST]
        raise ModelFailure(f"{type(error).__name__} {doing}: {said}") from error


def record(run_folder: Path, cause: Literal["model", "infrastructure"], reason: str) -> None:
    """Write `failure.json` for whoever started the run."""
    run_folder.mkdir(parents=True, exist_ok=True)
    (run_folder / "failure.json").write_text(json.dumps({"cause": cause, "reason": reason[: LONGEST + 100]}))
