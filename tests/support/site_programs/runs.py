from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from leaderboard.models import Run, Season, Track
from leaderboard.schedule import nightly
from scheduler.job_kinds import get_job_kind
from scheduler.models import Lease
from trainer import protocol


def create_tiny_track(text: str, budget: str, password: str, is_traced: bool, needs_labels: list[str]) -> None:
    """Create a season of real text, one tiny track and a maintainer."""
    season = Season.objects.create(name="Test season", corpus=f"files:{text}", tokenizer="bpe:512")
    train = {
        "sequence_length": 32,
        "batch": 4,
        "precision": "fp32",
        "compile": False,
        "evaluations": 3,
        "dev_tokens": 1024,
        "sample_tokens": 8,
    }
    model = {"depth": 2, "width": 32, "heads": 2}
    Track.objects.create(
        slug="tiny",
        name="Tiny",
        season=season,
        budget=budget,
        expected_seconds=60,
        is_default=True,
        is_traced=is_traced,
        needs_labels=needs_labels,
        config={"threads": 1, "checkpoint_every": "20steps", "model": model, "train": train},
        limits={"memory_bytes": 4 * 2**30, "disk_bytes": 2**28},
        probe_seconds=0.2,
    )
    User.objects.create_superuser("maintainer", password=password)


def count_train_leases() -> int:
    return Lease.objects.filter(job__kind="train").count()


def start_night() -> int:
    """Start the night on the tiny track, so that main becomes the baseline; return the number of main's run."""
    Track.objects.update(nightly=True)
    (night,) = nightly.start_nightly_runs(timezone.now())
    assert night.run is not None, night.sentence
    return night.run.pk


def read_leases() -> list[dict[str, Any]]:
    """Return node, kind and graph of each lease, and whether its job has files of an entry."""
    leases = Lease.objects.exclude(job__kind="self_test").order_by("pk").values_list("node__name", "spec")
    specs = [(node, protocol.JobSpec.model_validate_json(spec)) for node, spec in leases]
    return [
        {
            "node": node,
            "kind": spec.order.kind,
            "has_entry": spec.entry is not None,
            "graph": graph.hash if (graph := getattr(spec.order, "graph", None)) else None,
        }
        for node, spec in specs
    ]


def read_run_config(run: int) -> dict[str, Any]:
    """Return the configuration in the order of the run's job."""
    job = Run.objects.get(pk=run).job
    assert job is not None
    return get_job_kind(job).build_order(job, None).config
