"""The table of wanted GPUs on the sponsors' page."""

from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import Settings

from scheduler.job_kinds import PoolTrack
from tests.support.pool import create_job

pytestmark = pytest.mark.django_db
GB = 10**9


def list_example_tracks() -> dict[str, PoolTrack]:
    return {
        "ci": PoolTrack("For every commit", ("1x16gb",)),
        "pair": PoolTrack("On two cards", ("2x24gb",)),
        "night": PoolTrack("The night", ("1xh100", "1x80gb")),
        "cpu": PoolTrack("On a laptop"),
    }


@pytest.fixture
def example_tracks(settings: Settings) -> None:
    settings.POOL_TRACKS = "tests.scheduler.sponsors.test_wanted_cards.list_example_tracks"


def test_sponsor_page_with_waiting_jobs_shows_wanted_cards(example_tracks: None, client: Client) -> None:
    create_job(track="pair", needs_gpus=2, needs_gpu_memory_bytes=24 * GB)
    page = client.get("/sponsors/").content.decode()
    assert "2 GPUs of 24 GB" in page
    assert "On two cards" in page
