"""Publishing of datasets on the Hub, and reading them with `datasets` and as a corpus."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from django.utils import timezone

from leaderboard import outbox
from leaderboard.models import OutboxMessage
from leaderboard.publishing import datasets
from scheduler.campaigns import (
    dataset_files,
    producer,
    publishing,
    reputation,
    shards,
    sources,
    transitions,
    withdrawal,
)
from scheduler.campaigns.models import Campaign, Contribution, Rephrasing
from scheduler.hub import HubBusyError, translate_errors
from tests.support import hub_server
from tests.support.hub_server import Hub, Repository
from tests.support.volunteers import build_document, copy_source, fill_campaign, make_campaign, start_volunteer
from trainer.data.corpora import open_corpus
from trainer.errors import CorpusError

pytestmark = [pytest.mark.processes, pytest.mark.sql]


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    with hub_server.run_hub_server() as server:
        settings.HUB_ENDPOINT, settings.HUB_ORGANIZATION = server.url, hub_server.ORGANIZATION
        settings.HF_TOKEN = hub_server.TOKEN
        yield server


@pytest.fixture
def done_campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """A finished campaign with one packet set aside."""
    fields = {"hub_name": "small-words", "license": "odc-by", "max_attempts": 1}
    campaign = fill_campaign(make_campaign(settings, tmp_path, **fields))
    ada = start_volunteer("ada")
    *packets, last = ada.take(100)
    ada.submit(*(ada.result(packet) for packet in packets), ada.result(last, copy_source))
    complete_campaign(campaign)
    return campaign


def complete_campaign(campaign: Campaign) -> None:
    shards.update_shards()
    transitions.finish_complete_campaigns()
    campaign.refresh_from_db()


def publish_datasets() -> None:
    datasets.enqueue_datasets()
    OutboxMessage.objects.update(not_before=timezone.now())
    outbox.process_due(are_long=True)


def get_repository(hub: Hub) -> Repository:
    return hub.repositories["datasets/trains/small-words"]


def list_accepted() -> list[tuple[str, str]]:
    rows = Rephrasing.objects.filter(state="accepted").order_by("shard__number", "packet", "chunk", "style")
    return [(f"{row.packet_id}-{row.chunk}-{row.style}", row.text) for row in rows]


def test_published_dataset_contains_accepted_texts_and_its_manifest_every_file(
    hub: Hub, done_campaign: Campaign, tmp_path: Path
) -> None:
    assert done_campaign.state == "done"
    publish_datasets()
    message = OutboxMessage.objects.get()
    assert (message.state, message.problem) == (OutboxMessage.State.DONE, "")
    files = get_repository(hub).head.files
    for path, content in files.items():
        (tmp_path / "got" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "got" / path).write_bytes(content)
    from datasets import load_dataset

    read = load_dataset(str(tmp_path / "got"), split="train", cache_dir=str(tmp_path / "cache"))
    assert [(row["id"], row["text"]) for row in read] == list_accepted()
    set_aside = [json.loads(line) for line in files["set_aside.jsonl"].splitlines()]
    assert len(read) == 2 * done_campaign.chunk_count - len(set_aside)
    for row in read:
        assert hashlib.sha256(row["text"].encode()).hexdigest() == row["sha256"]
        assert hashlib.sha256(row["source"].encode()).hexdigest() == row["source_sha256"]
    manifest = json.loads(files["manifest.json"])
    assert [shard["rows"] for shard in manifest["shards"]][:-1] == [10] * (len(manifest["shards"]) - 1)
    assert {shard["name"] for shard in manifest["shards"]} == {name for name in files if name.startswith("data/")}
    for shard in manifest["shards"]:
        assert hashlib.sha256(files[shard["name"]]).hexdigest() == shard["sha256"]
    assert hashlib.sha256(files["set_aside.jsonl"]).hexdigest() == manifest["set_aside"]["sha256"]
    assert manifest["set_aside"]["rows"] == files["set_aside.jsonl"].count(b'"copied"') == len(set_aside) > 0
    assert (manifest["model"], manifest["state"], manifest["rows"]) == ("tiny", "done", len(list_accepted()))


def test_dataset_card_describes_method_and_contributors(hub: Hub, done_campaign: Campaign) -> None:
    Campaign.objects.update(about="A <b>small</b> one.", name="For @everyone_")
    Contribution.objects.update(rejected=3, rejection_reasons={"repetitive": 3})
    publish_datasets()
    _, head, card = get_repository(hub).head.files["README.md"].decode().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert (metadata["license"], metadata["configs"][0]["data_files"][0]["path"]) == ("odc-by", "data/*.parquet")
    for sentence in (
        "# For @\u2060everyone\\_\n",
        "A \\<b\\>small\\</b\\> one.",
        "License: odc-by, which follows the source's.",
        "| It repeats itself. | 3 |",
        "Thanks to 1 anonymous volunteer,",
    ):
        assert sentence in card, sentence


def test_dataset_card_escapes_names_but_not_addresses_and_code(campaign: Campaign) -> None:
    manifest = {"rows": 1, "address": "https://train.example.org/campaigns/one/", "set_aside": {"rows": 0}}
    campaign.source, campaign.dataset, campaign.model = Campaign.Source.HUB, "org/my_texts", "org/a_model"
    card = "\n".join(dataset_files.build_introduction(campaign, manifest))
    card += "\n".join(dataset_files.build_method_section(campaign))
    for text in ("[org/my\\_texts](", "/datasets/org/my_texts)", "`org/a_model`"):
        assert text in card


def test_interrupted_publishing_commits_each_batch_once(
    hub: Hub, done_campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SHARDS_PER_COMMIT", 2)
    hub.fail_requests("POST", r"/api/datasets/trains/small-words/commit", 503, times=1)
    publish_datasets()
    assert OutboxMessage.objects.get().state == OutboxMessage.State.PENDING
    publish_datasets()
    count = done_campaign.shards.count()
    commits = get_repository(hub).commits[1:]
    assert len(commits) == -(-count // 2)
    assert hub.count_uploads() == count
    shas = {shard.blob.sha256 for shard in done_campaign.shards.current()}
    assert {shard.published_sha256 for shard in done_campaign.shards.all()} == shas
    # A retry after a lost record uploads nothing.
    assert datasets.enqueue_datasets() == 0
    done_campaign.shards.update(published_sha256="")
    publish_datasets()
    assert len(get_repository(hub).commits[1:]) == len(commits)
    assert hub.count_uploads() == count


def test_withdrawn_texts_are_removed_from_the_hub(hub: Hub, done_campaign: Campaign) -> None:
    publish_datasets()
    row_count = json.loads(get_repository(hub).head.files["manifest.json"])["rows"]
    ada = Rephrasing.objects.filter(state="accepted")[0].volunteer
    reputation.ban_volunteer(ada, "mara", "Nonsense.")
    withdrawal.withdraw_banned()
    done_campaign.refresh_from_db()
    assert done_campaign.state == "running"
    assert datasets.enqueue_datasets() == 0, "its shards are being rewritten"
    bob = start_volunteer("bob")
    while bob.rephrase():
        pass
    complete_campaign(done_campaign)
    publish_datasets()
    files = get_repository(hub).head.files
    manifest = json.loads(files["manifest.json"])
    assert manifest["rows"] == len(list_accepted()) >= row_count
    assert not Rephrasing.objects.filter(state="accepted", volunteer=ada).exists()
    assert sorted(shard["sha256"] for shard in manifest["shards"]) == sorted(
        hashlib.sha256(content).hexdigest() for name, content in files.items() if name.startswith("data/")
    )


def test_publishing_to_repository_of_other_site_is_refused(hub: Hub, done_campaign: Campaign) -> None:
    repository = hub.repositories["datasets/trains/small-words"] = Repository()
    repository.add_commit("theirs", "Published-from: https://elsewhere/rephrase/other/", {})
    publish_datasets()
    message = OutboxMessage.objects.get()
    assert (message.state, "elsewhere" in message.problem) == (OutboxMessage.State.FAILED, True)
    assert len(repository.commits) == 1


def test_hub_dataset_opens_as_corpus(
    hub: Hub, done_campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, file_download

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", constants.HUGGINGFACE_CO_URL_TEMPLATE)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    publish_datasets()
    pin = hashlib.sha256(get_repository(hub).head.files["manifest.json"]).hexdigest()
    get_repository(hub).add_commit("later", "", {"manifest.json": b"{}"})  # the pin still finds the older commit
    assert [
        (document.id, document.text) for document in open_corpus(f"rephrased:trains/small-words@{pin}")
    ] == list_accepted()
    with pytest.raises(CorpusError, match="no manifest with the hash"):
        open_corpus(f"rephrased:trains/small-words@{'0' * 64}")
    with pytest.raises(CorpusError, match="cannot be read on the Hugging Face Hub"):
        open_corpus(f"rephrased:trains/nothing@{pin}")


def test_hub_source_is_pinned_read_once_and_from_a_folder_that_can_be_written(
    hub: Hub, db: None, settings: Any, tmp_path: Path
) -> None:
    lines = "".join(json.dumps({"text": build_document(number)}) + "\n" for number in range(3)).encode()
    card = b"---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*.jsonl\n---\n"
    source = hub.repositories["datasets/owner/words"] = Repository()
    files = {"README.md": card, "en/train-0.jsonl": lines, "en/test-0.jsonl": b"{}\n", "de/train-0.jsonl": b"{}\n"}
    commit = source.add_commit("texts", "", files)
    fields = {"source": "hub", "dataset": "owner/words", "config": "en", "split": "train", "revision": "main"}
    campaign = make_campaign(settings, tmp_path, **fields)
    source.add_commit("later", "", {"README.md": card, "en/train-0.jsonl": b""})
    Campaign.objects.filter(pk=campaign.pk).update(revision=commit.id)
    with producer.claim_campaign(campaign.pk) as is_claimed:
        assert is_claimed
        assert producer.produce_campaign(campaign.pk) == 0
        assert hub.requests == []
    folder = tmp_path / "sources" / str(campaign.pk)
    folder.parent.mkdir(exist_ok=True)
    folder.write_bytes(b"")
    assert fill_campaign(campaign).source_error == f"{folder}/en: Not a directory."
    folder.unlink()
    for name, age in ((".part-old", 2 * 86_400), (".part-new", 60)):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_bytes(b"{")
        os.utime(folder / name, (time.time() - age,) * 2)
    sources.download_file(campaign, "en/train-0.jsonl", folder / "train.jsonl")
    assert {found.name for found in folder.iterdir()} == {".part-new", "train.jsonl"}, "an old download is deleted"
    campaign = fill_campaign(campaign)
    assert (campaign.source_error, campaign.revision, campaign.files) == ("", commit.id, ["en/train-0.jsonl"])
    assert (campaign.rows_read, campaign.is_exhausted) == (3, True)
    assert not folder.exists(), "downloads are deleted"


@pytest.mark.parametrize("kind", [ConnectionResetError, TimeoutError, requests.ConnectionError, requests.Timeout])
def test_connection_error_is_reported_as_unreachable_hub(kind: type[OSError]) -> None:
    with pytest.raises(HubBusyError, match=rf"The Hub cannot be reached \({kind.__name__}\)."), translate_errors("o/n"):
        raise kind


def test_error_of_the_disk_is_reported_with_its_path(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(HubBusyError, match=f"^{missing}: No such file or directory.$"), translate_errors("o/n"):
        missing.read_bytes()
    with (
        pytest.raises(HubBusyError, match=f"^{tmp_path}: No space left on device.$"),
        translate_errors("o/n", tmp_path),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
