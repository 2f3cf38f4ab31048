from __future__ import annotations

from typing import Any

from django.core.management import call_command

from leaderboard.models import Season, Seat, Track
from leaderboard.submissions import intake
from scheduler import node_tokens
from scheduler.models import Job


def create_swarm_run(text: str, repository: str, steps: int) -> dict[str, Any]:
    """Create a site with a swarm track and one approved entry; return the run and a trusted node's join token."""
    call_command("migrate", verbosity=0)
    season = Season.objects.create(name="Test season", corpus=f"files:{text}", tokenizer="bpe:512")
    call_command("prepare_season", verbosity=0)
    season.refresh_from_db()
    track = Track.objects.create(
        slug="together",
        name="Together",
        season=season,
        budget=f"{steps}steps",
        expected_seconds=30,
        probe_seconds=0,
        kind="swarm",
        is_traced=False,
        swarm={"stages": 2, "workers": 1, "minimum": 1, "patience": 60},
        is_default=True,
        config={
            "model": {"depth": 2, "width": 32, "heads": 2},
            "train": {"sequence_length": 32, "batch": 16},
            "swarm": {"micro_batches": 4, "learning_rate": 0.003, "warmup_steps": 2, "checkpoint_every": 5},
        },
        limits={"memory_bytes": 8 * 2**30, "disk_bytes": 2**28, "processes": 512, "wall_seconds": 3600},
    )
    track.full_clean()
    entry = intake.submit_entry(repository, "main", "Everybody", "gpt", track)
    (run,) = intake.approve_entry(entry, entry.sha, None)
    return {"run": str(run.pk), "token": node_tokens.create_join_token(trusted=True)}


def read_seats() -> dict[str, Any]:
    """Return the rows that all seats have trained and the jobs of seats that have not ended."""
    jobs = Job.objects.filter(kind="seat").exclude(state__in=["done", "cancelled"])
    return {"rows": sum(Seat.objects.values_list("rows", flat=True)), "open": [job.pk for job in jobs]}
