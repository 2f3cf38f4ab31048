from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from leaderboard.models import ApiToken, Run, Season, Track
from scheduler.job_kinds import get_job_kind
from scheduler.models import Lease


def create_tiny_track(text: str, budget: str, password: str) -> None:
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
        is_traced=False,
        config={"threads": 1, "checkpoint_every": "20steps", "model": model, "train": train},
        limits={"memory_bytes": 4 * 2**30, "disk_bytes": 2**28},
        probe_seconds=0.2,
    )
    User.objects.create_superuser("maintainer", password=password)


def open_track(name: str) -> str:
    """Let anyone's traced entry run on the tiny track; return the secret of a new user's token."""
    Season.objects.update(caps={}, test_tokens=1024)
    Track.objects.update(is_traced=True, approval=Track.Approval.ANYONE)
    token = ApiToken(name=name, owner=User.objects.create_user(name))
    secret = token.draw_secret()
    token.save()
    return secret


def count_train_leases() -> int:
    return Lease.objects.filter(job__kind="train").count()


def read_run_config(run: int) -> dict[str, Any]:
    """Return the configuration in the order of the run's job."""
    job = Run.objects.get(pk=run).job
    assert job is not None
    return get_job_kind(job).build_order(job, None).config
