"""Settings of a site whose jobs need no torch."""

from __future__ import annotations

from dailytrain.settings import *  # noqa: F403
from dailytrain.settings import HOME, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.proven_nodes.ProvenNodes"]

JOB_KINDS = {"train": "tests.acceptance.chaos_job_kind.RecordedSteps"}
STEPS = HOME / "steps"
"""The reported steps, a file for each job."""
