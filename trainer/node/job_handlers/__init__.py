"""What an agent can do: one file per kind of job, one line in `KINDS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trainer.node.job_handlers import generate, notebook, rephrase, replay, score, seat, smoke, swarm, train

if TYPE_CHECKING:
    from trainer.node.job import Job
    from trainer.node.outcome import JobOutcome


class JobHandler(Protocol):
    DOING: str
    """For the sponsor: "training", ..."""

    def run(self, job: Job) -> JobOutcome:
        """Do the job. May raise what `trainer.node.job.run_handler` puts into words."""


JOB_HANDLERS: dict[str, JobHandler] = {
    "train": train,
    "score": score,
    "replay": replay,
    "smoke": smoke,
    "notebook": notebook,
    "generate": generate,
    "rephrase": rephrase,
    "swarm": swarm,
    "seat": seat,
}
REPHRASE_KIND = "rephrase"
"""The one that needs something of its owner's: a back end."""
SWARM_KINDS = ("swarm", "seat")
"""Those that need the engine of swarms installed."""
