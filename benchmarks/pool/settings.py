"""A site whose jobs are of the simulation's kind: there is nothing to look up but the queue."""

from __future__ import annotations

from dailytrain.settings import *  # noqa: F403

JOB_KINDS = {"train": "scheduler.simulation.job_kind.SimulatedJobKind"}
