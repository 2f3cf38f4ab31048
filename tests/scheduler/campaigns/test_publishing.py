"""Publishing of datasets on the Hub, and reading them with `datasets` and as a corpus."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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
from scheduler.campaigns.models import Campaign, Contribution, Packet, Rephrasing
from tests.support import hub_server
from tests.support.hub_server import Hub, Repository
from tests.support.volunteers import build_document, fill_campaign, make_campaign, start_volunteer
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
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """A finished campaign with one packet set aside."""
    campaign = fill_campaign(make_campaign(settings, tmp_path, hub_name="small-words", license="odc-by"))
    ada = start_volunteer("ada")
    packets = ada.take(100)
    ada.submit(*(ada.result(packet) for packet in packets[:-1]))
    set_aside = Packet.objects.get(pk=packets[-1].packet)
    missing = [[*key, ["copied"]] for key in set_aside.list_outputs(campaign.styles)]
    Packet.objects.filter(pk=set_aside.pk).update(state="set_aside", missing=missing)
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


def write_files(files: dict[str, bytes], folder: Path) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def list_accepted() -> list[tuple[str, str]]:
    rows = Rephrasing.objects.filter(state="accepted").order_by("shard__number", "packet", "chunk", "style")
    return [(f"{row.packet_id}-{row.chunk}-{row.style}", row.text) for row in rows]


def test_published_dataset_contains_accepted_texts(hub: Hub, campaign: Campaign, tmp_path: Path) -> None:
    assert campaign.state == "done"
    publish_datasets()
    message = OutboxMessage.objects.get()
    assert (message.state, message.problem) == (OutboxMessage.State.DONE, "")
    folder = write_files(get_repository(hub).head.files, tmp_path / "got")
    from datasets import load_dataset

    read = load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert [(row["id"], row["text"]) for row in read] == list_accepted()
    assert len(read) == 2 * campaign.chunk_count - len(load_set_aside(folder))
    for row in read:
        assert hashlib.sha256(row["text"].encode()).hexdigest() == row["sha256"]
        assert hashlib.sha256(row["source"].encode()).hexdigest() == row["source_sha256"]


def load_set_aside(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "set_aside.jsonl").read_text().splitlines()]


def test_manifest_lists_every_file_with_its_hash(hub: Hub, campaign: Campaign) -> None:
    publish_datasets()
    files = get_repository(hub).head.files
    manifest = json.loads(files["manifest.json"])
    assert [shard["rows"] for shard in manifest["shards"]][:-1] == [10] * (len(manifest["shards"]) - 1)
    assert {shard["name"] for shard in manifest["shards"]} == {name for name in files if name.startswith("data/")}
    for shard in manifest["shards"]:
        assert hashlib.sha256(files[shard["name"]]).hexdigest() == shard["sha256"]
    assert hashlib.sha256(files["set_aside.jsonl"]).hexdigest() == manifest["set_aside"]["sha256"]
    assert manifest["set_aside"]["rows"] == files["set_aside.jsonl"].count(b'"copied"') > 0
    assert (manifest["model"], manifest["state"], manifest["rows"]) == ("tiny", "done", len(list_accepted()))


MANIFEST = {"rows": 1, "address": "https://train.example.org/campaigns/one/", "set_aside": {"rows": 0}}


def test_dataset_card_escapes_names_but_not_addresses_and_code(hub: Hub, campaign: Campaign) -> None:
    names = {"name": "For @everyone_", "dataset": "org/my_texts", "model": "org/a_model"}
    Campaign.objects.filter(pk=campaign.pk).update(source=Campaign.Source.HUB, **names)
    card = "\n".join(dataset_files.build_introduction(Campaign.objects.get(pk=campaign.pk), MANIFEST))
    card += "\n".join(dataset_files.build_method_section(Campaign.objects.get(pk=campaign.pk)))
    assert "# For @\u2060everyone\\_" in card
    assert "[org/my\\_texts](" in card
    assert "/datasets/org/my_texts)" in card
    assert "`org/a_model`" in card


def test_dataset_card_describes_method_and_contributors(hub: Hub, campaign: Campaign) -> None:
    Campaign.objects.update(about="A <b>small</b> one.")
    Contribution.objects.update(rejected=3, rejection_reasons={"repetitive": 3})
    publish_datasets()
    _, head, card = get_repository(hub).head.files["README.md"].decode().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert (metadata["license"], metadata["configs"][0]["data_files"][0]["path"]) == ("odc-by", "data/*.parquet")
    for sentence in (
        "# Small\n",
        "A \\<b\\>small\\</b\\> one.",
        f"| easy | {len(list_accepted()) // 2} |",
        "4 read, none dropped",
        "[WRAP](https://arxiv.org/abs/2401.16380) (Maini et al., 2024)",
        "License: odc-by, which follows the source's.",
        "The checks rejected 3 of ",
        "| It repeats itself. | 3 |",
        "Thanks to 1 anonymous volunteer,",
        "The dataset is complete.",
    ):
        assert sentence in card, sentence


def test_interrupted_publishing_commits_each_batch_once(
    hub: Hub, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SHARDS_PER_COMMIT", 2)
    hub.fail_requests("POST", r"/api/datasets/trains/small-words/commit", 503, times=1)
    publish_datasets()
    assert OutboxMessage.objects.get().state == OutboxMessage.State.PENDING
    publish_datasets()
    count = campaign.shards.count()
    commits = get_repository(hub).commits[1:]
    assert len(commits) == -(-count // 2)
    assert hub.count_uploads() == count
    assert {shard.published_sha256 for shard in campaign.shards.all()} == {
        shard.blob.sha256 for shard in campaign.shards.current()
    }
    # A retry after a lost record uploads nothing.
    assert datasets.enqueue_datasets() == 0
    campaign.shards.update(published_sha256="")
    publish_datasets()
    assert len(get_repository(hub).commits[1:]) == len(commits)
    assert hub.count_uploads() == count


def test_withdrawn_texts_are_removed_from_the_hub(hub: Hub, campaign: Campaign) -> None:
    publish_datasets()
    row_count = json.loads(get_repository(hub).head.files["manifest.json"])["rows"]
    ada = Rephrasing.objects.filter(state="accepted")[0].volunteer
    reputation.ban_volunteer(ada, "mara", "Nonsense.")
    withdrawal.withdraw_banned()
    campaign.refresh_from_db()
    assert campaign.state == "running"
    assert datasets.enqueue_datasets() == 0, "its shards are being rewritten"
    bob = start_volunteer("bob")
    while bob.rephrase():
        pass
    complete_campaign(campaign)
    publish_datasets()
    files = get_repository(hub).head.files
    manifest = json.loads(files["manifest.json"])
    assert manifest["rows"] == len(list_accepted()) >= row_count
    assert not Rephrasing.objects.filter(state="accepted", volunteer=ada).exists()
    assert sorted(shard["sha256"] for shard in manifest["shards"]) == sorted(
        hashlib.sha256(content).hexdigest() for name, content in files.items() if name.startswith("data/")
    )


def test_publishing_to_repository_of_other_site_is_refused(hub: Hub, campaign: Campaign) -> None:
    repository = hub.repositories["datasets/trains/small-words"] = Repository()
    repository.add_commit("theirs", "Published-from: https://elsewhere/rephrase/other/", {})
    publish_datasets()
    message = OutboxMessage.objects.get()
    assert (message.state, "elsewhere" in message.problem) == (OutboxMessage.State.FAILED, True)
    assert len(repository.commits) == 1


def test_hub_dataset_opens_as_corpus(
    hub: Hub, campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_hub_source_is_pinned_and_read(hub: Hub, db: None, settings: Any, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": build_document(number)}) + "\n" for number in range(3)).encode()
    card = b"---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*.jsonl\n---\n"
    source = hub.repositories["datasets/owner/words"] = Repository()
    files = {"README.md": card, "en/train-0.jsonl": lines, "en/test-0.jsonl": b"{}\n", "de/train-0.jsonl": b"{}\n"}
    commit = source.add_commit("texts", "", files)
    fields = {"source": "hub", "dataset": "owner/words", "config": "en", "split": "train", "revision": "main"}
    campaign = make_campaign(settings, tmp_path, **fields)
    source.add_commit("later", "", {"README.md": card, "en/train-0.jsonl": b""})
    Campaign.objects.filter(pk=campaign.pk).update(revision=commit.id)
    campaign = fill_campaign(campaign)
    assert (campaign.source_error, campaign.revision, campaign.files) == ("", commit.id, ["en/train-0.jsonl"])
    assert (campaign.rows_read, campaign.is_exhausted) == (3, True)
    assert not (tmp_path / "sources" / str(campaign.pk)).exists(), "downloads are deleted"


@pytest.fixture
def hub_source(hub: Hub, db: None, settings: Any, tmp_path: Path) -> Campaign:
    """A campaign over three documents of a dataset on the Hub."""
    lines = "".join(json.dumps({"text": build_document(number)}) + "\n" for number in range(3)).encode()
    hub.repositories["datasets/owner/words"] = Repository()
    hub.repositories["datasets/owner/words"].add_commit("texts", "", {"train.jsonl": lines})
    return make_campaign(settings, tmp_path, source="hub", dataset="owner/words")


def test_source_folder_that_cannot_be_written_is_named(hub_source: Campaign, tmp_path: Path) -> None:
    folder = tmp_path / "sources" / str(hub_source.pk)
    folder.parent.mkdir()
    folder.write_bytes(b"")
    assert fill_campaign(hub_source).source_error == f"{folder}: File exists."


def test_old_partial_downloads_are_deleted(hub_source: Campaign, tmp_path: Path) -> None:
    path = tmp_path / "downloads" / "train.jsonl"
    for name, age in ((".part-old", 2 * 86_400), (".part-new", 60)):
        (path.parent / name).mkdir(parents=True)
        (path.parent / name / "train.jsonl").write_bytes(b"{")
        os.utime(path.parent / name, (time.time() - age,) * 2)
    sources.download_file(hub_source, "train.jsonl", path)
    assert {found.name for found in path.parent.iterdir()} == {".part-new", "train.jsonl"}


def test_campaign_with_active_producer_is_not_produced_again(hub: Hub, hub_source: Campaign) -> None:
    with producer.claim_campaign(hub_source.pk) as is_claimed:
        assert is_claimed
        assert producer.produce_campaign(hub_source.pk) == 0
        assert hub.requests == []
    assert producer.produce_campaign(hub_source.pk) > 0
