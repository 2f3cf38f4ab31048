"""Handlers of an agent: one file per kind of job, one line in `JOB_HANDLERS`."""

from __future__ import annotations

from typing import Protocol

from trainer.node.job import Job
from trainer.node.job_handlers import (
    generate,
    notebook,
    rephrase,
    replay,
    score,
    self_test,
    smoke,
    swarm,
    swarm_sample,
    swarm_worker,
    train,
)
from trainer.node.outcome import JobOutcome


class JobHandler(Protocol):
    ACTIVITY: str  # for the log, such as "training"

    def run(self, job: Job) -> JobOutcome:
        """Run the job. May raise what `trainer.node.job_runner.run_handler` catches."""


JOB_HANDLERS: dict[str, JobHandler] = {
    "train": train,
    "score": score,
    "replay": replay,
    "smoke": smoke,
    "notebook": notebook,
    "generate": generate,
    "rephrase": rephrase,
    "swarm": swarm,
    "seat": swarm_worker,
    "swarm_sample": swarm_sample,
    "self_test": self_test,
}
SELF_TEST_KIND = "self_test"  # the site tests each slot before it gets other jobs
REPHRASE_KIND = "rephrase"  # needs a rephrasing back end
SWARM_KINDS = ("swarm", "seat", "swarm_sample")  # need the extra `swarm`
