"""Handlers of an agent: one function per kind of job, one line in `JOB_HANDLERS`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

from trainer.node.job import Job
from trainer.node.job_handlers import generate, notebook, rephrase, replay, score, self_test, smoke, swarm, train
from trainer.node.outcome import JobOutcome


class JobHandler(NamedTuple):
    activity: str  # for the log
    run: Callable[[Job], JobOutcome]  # May raise what `trainer.node.job_runner.run_handler` catches.


JOB_HANDLERS = {
    "train": JobHandler("training", train.run_training),
    "score": JobHandler("scoring", score.score_run),
    "replay": JobHandler("replaying", replay.replay_run),
    "smoke": JobHandler("smoke test", smoke.run_smoke_test),
    "notebook": JobHandler("running a notebook", notebook.run_notebook),
    "generate": JobHandler("writing for a visitor", generate.generate_text),
    "rephrase": JobHandler("rephrasing", rephrase.rephrase_packets),
    "swarm": JobHandler("leading a swarm", swarm.coordinate_swarm),
    "seat": JobHandler("training with a swarm", swarm.work_in_swarm),
    "swarm_sample": JobHandler("writing for a visitor", swarm.sample_swarm),
    "self_test": JobHandler("self-test", self_test.run_self_test),
}
SELF_TEST_KIND = "self_test"  # the site tests each slot before it gets other jobs
REPHRASE_KIND = "rephrase"  # needs a rephrasing back end
EXTRAS = {"notebook": ("papermill", ("notebook",)), "swarm": ("hivemind", ("swarm", "seat", "swarm_sample"))}
"""Extra -> (a package of it, the kinds of job that need it)."""


def list_missing_extras() -> list[str]:
    return [extra for extra, (package, _) in EXTRAS.items() if importlib.util.find_spec(package) is None]


def list_unsupported_kinds() -> set[str]:
    """Return the kinds of job that this installation cannot run."""
    return {kind for extra in list_missing_extras() for kind in EXTRAS[extra][1]}


def describe_missing_extras() -> str:
    """Return for example "takes no notebook and swarm jobs: pip install 'dailytrain[notebook,swarm]'", or ""."""
    missing = list_missing_extras()
    return f"takes no {' and '.join(missing)} jobs: pip install 'dailytrain[{','.join(missing)}]'" if missing else ""
