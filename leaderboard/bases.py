"""What a run starts from: the weights that another run of this site ended with (fine-tuning).

A track names that run, and each of its runs keeps whose weights it was given. They stay as long as one points at them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler import storage
from scheduler.models import JobFile
from trainer import wire

if TYPE_CHECKING:
    from leaderboard.models import Run

RUN_FILE = "run.json"


def refusal(start: Run | None) -> str:
    """Return why nothing can start from this run, in a sentence; empty if it can."""
    if start is None:
        return ""
    if start.checkpoint is None or run_file(start) is None:
        return f"Run {start.pk} has not been trained to its end: nothing can start from it yet."
    return ""


def of(run: Run) -> wire.Base | None:
    """Return what the run's node fetches to start from; None where it starts from scratch.

    Raises ValueError where the weights are gone.
    """
    start = run.start_run
    if start is None:
        return None
    about = run_file(start)
    if start.checkpoint is None or about is None:
        raise ValueError(f"The weights of run {start.pk} are gone.")
    return wire.Base(
        name=f"run-{start.pk}",
        run=storage.reference(about.blob, RUN_FILE),
        checkpoint=wire.Checkpoint.model_validate(start.checkpoint.manifest),
    )


def run_file(run: Run) -> JobFile | None:
    return JobFile.objects.select_related("blob").filter(job=run.job_id, path=RUN_FILE).first()
