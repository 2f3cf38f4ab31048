"""Settings with simulated jobs, so that a poll reads the queue only."""

from __future__ import annotations

from dailytrain.settings import *  # noqa: F403

JOB_KINDS = {"train": "scheduler.simulation.job_kind.SimulatedJobKind"}
