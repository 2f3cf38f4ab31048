"""Publication of season datasets on the Hub: once, without the test split, readable by training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client
from django.utils import timezone

from leaderboard import outbox, tasks
from leaderboard.models import OutboxMessage, Season
from leaderboard.publishing import season_datasets
from leaderboard.schedule import first_season
from scheduler.models import Event
from tests.support.hub_server import Failure, Hub, Repository
from trainer.data.dataset import Dataset

pytestmark = [pytest.mark.processes, pytest.mark.django_db]
NAME = "Season 1"


@pytest.fixture
def season(prepared_corpus: str) -> Season:
    """A prepared season whose text is that of a corpus that may be published."""
    season = Season.objects.create(name=NAME, active=False, corpus=prepared_corpus, tokenizer="bpe:300")
    first_season.prepare_season(season, show_progress=False)
    Season.objects.filter(pk=season.pk).update(corpus="fineweb-edu:sample-10BT")
    season.refresh_from_db()
    return season


def run_publish_task() -> None:
    tasks.publish_datasets()
    OutboxMessage.objects.update(not_before=timezone.now())
    outbox.process_due(are_long=True)


def get_repository(hub: Hub, season: Season) -> Repository:
    return hub.repositories[f"datasets/trains/season-1-{season.dataset_hash[:8]}"]


def test_season_dataset_is_published_once_and_readable(
    hub: Hub, season: Season, tmp_path: Path, maintainer_client: Client, settings: Any
) -> None:
    settings.HUB_PUBLISH = ["record"]
    assert season_datasets.enqueue_seasons() == 0
    settings.HUB_PUBLISH = ["season"]
    run_publish_task()
    run_publish_task()
    repository = get_repository(hub, season)
    assert len(repository.commits) == 3, "the repository, the shards, the manifest"
    files = repository.head.files
    assert {"manifest.json", "tokenizer.json", "train/00000.bin", "dev/00000.bin", "README.md"} <= files.keys()
    assert not any(path.startswith("test/") for path in files)
    for path, content in files.items():
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / path).write_bytes(content)
    dataset = Dataset.open(tmp_path / "copy")
    dataset.verify()
    assert (dataset.hash, dataset.has_test) == (season.dataset_hash, False)
    _, header, text = files["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(header)["license"] == "odc-by"
    assert f"`{season.dataset_hash}`" in text
    assert "HuggingFaceFW/fineweb-edu@" in text
    url = f"{hub.url}/datasets/trains/season-1-{season.dataset_hash[:8]}"
    assert season_datasets.get_hub_url(season) == url
    page = maintainer_client.get(f"/admin/leaderboard/season/{season.pk}/change/").content.decode()
    assert f'<a href="{url}">' in page
    assert Event.objects.about(season).filter(sentence__contains="were published as").count() == 1
    assert season.dataset("train").files, "nodes download from the site"


def test_interrupted_dataset_upload_sends_only_missing_shards(
    hub: Hub, season: Season, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(season_datasets, "SHARDS_PER_COMMIT", 1)
    hub.failures.append(Failure("POST", "/api/datasets/trains/.*/commit/main", 503, times=1))
    run_publish_task()
    assert OutboxMessage.objects.get().state == "pending"
    run_publish_task()
    assert OutboxMessage.objects.get().state == "done"
    titles = [commit.title for commit in get_repository(hub, season).commits[1:]]
    assert titles == ["dev/00000.bin to dev/00000.bin", "train/00000.bin to train/00000.bin", titles[-1]]
    sent_bytes = hub.sent_bytes
    OutboxMessage.objects.update(state="pending")
    run_publish_task()
    assert hub.sent_bytes == sent_bytes
    assert len(get_repository(hub, season).commits) == 4
