"""What an agent can do: one file per kind of job, one line in `KINDS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trainer.node.job_handlers import generate, notebook, rephrase, replay, score, seat, smoke, swarm, train

if TYPE_CHECKING:
    from trainer.node.job import Job
    from trainer.node.outcome import Outcome


class Kind(Protocol):
    DOING: str
    """For the sponsor: "training", ..."""

    def run(self, job: Job) -> Outcome:
        """Do the job. May raise what `trainer.node.job.attempt` puts into words."""


KINDS: dict[str, Kind] = {
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
REPHRASE = "rephrase"
"""The one that needs something of its owner's: a back end."""
SWARM = ("swarm", "seat")
"""Those that need the engine of swarms installed."""
