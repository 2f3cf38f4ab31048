"""The pool simulator: reproducible outcomes, consistent sums, and no changes in the site's database."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from benchmarks.pool_simulation.__main__ import main
from scheduler.models import Job, Lease, Node

pytestmark = pytest.mark.django_db


def test_simulation_prints_its_report_and_leaves_database_and_clock_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = timezone.now()
    assert main(["--nodes", "5", "--days", "0.1", "--seed", "3", "--json"]) == 0
    names = {"utilization", "lost_work", "starved", "wait_p95_hours", "jobs_done"}
    assert set(json.loads(capsys.readouterr().out)) == names
    assert timezone.now() >= before
    assert not Node.objects.exists()
    assert not Job.objects.exists()
    assert not Lease.objects.exists()
