"""The table of wanted GPUs on the sponsors' page."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from scheduler.job_kinds import PoolTrack
from scheduler.models import Job
from scheduler.sponsors.wanted_cards import list_wanted_cards
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


def list_rows() -> list[tuple[str, int, list[str]]]:
    return [(row.cards, row.jobs, row.tracks) for row in list_wanted_cards(timezone.now())]


@pytest.fixture
def example_tracks(settings: Settings) -> None:
    settings.POOL_TRACKS = "tests.scheduler.sponsors.test_wanted_cards.list_example_tracks"


def test_wanted_cards_list_queued_jobs_before_tracks(
    example_tracks: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(2):
        create_job(track="pair", needs_gpus=2, needs_gpu_memory_bytes=24 * GB)
    create_job(track="night", needs_gpus=1, needs_gpu_memory_bytes=80 * GB, needs_labels=["1xh100"])
    create_job(track="gone", needs_gpus=4, needs_gpu_memory_bytes=80 * GB)
    create_job(track="cpu")
    create_job(track="ci", needs_gpus=1, needs_gpu_memory_bytes=16 * GB, needs_trusted=True)  # a score
    create_job(track="ci", needs_gpus=1, needs_gpu_memory_bytes=16 * GB, state=Job.State.DONE)
    with django_assert_num_queries(1):
        rows = list_rows()
    assert rows == [
        ("2 GPUs of 24 GB", 2, ["On two cards"]),
        ("H100", 1, ["The night"]),
        ("4 GPUs of 80 GB", 1, []),
        ("GPU of 16 GB", 0, ["For every commit"]),
    ]


def test_sponsor_page_with_waiting_jobs_shows_wanted_cards(example_tracks: None, client: Client) -> None:
    create_job(track="pair", needs_gpus=2, needs_gpu_memory_bytes=24 * GB)
    page = client.get("/sponsors/").content.decode()
    assert "2 GPUs of 24 GB" in page
    assert "On two cards" in page


def test_sponsor_page_without_waiting_jobs_shows_a_message(client: Client) -> None:
    assert list_rows() == []
    assert "No job waits for a GPU, and no track asks for one." in client.get("/sponsors/").content.decode()
