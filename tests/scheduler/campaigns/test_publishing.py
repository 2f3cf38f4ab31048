"""From a campaign to a dataset on the Hub, which `datasets` reads, and to a corpus that a train reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.utils import timezone

from leaderboard import outbox
from leaderboard.models import Effect
from leaderboard.publishing import datasets
from scheduler.campaigns import dataset_files, messages, publishing, reputation, shards, transitions, withdrawal
from scheduler.campaigns.models import Campaign, Packet, Rephrasing
from tests.support import hub_server
from tests.support.hub_server import Hub, Repository
from tests.support.volunteers import document, make_campaign, produced, sit_down
from trainer.data.corpora import open_corpus
from trainer.data.errors import CorpusError


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    with hub_server.running() as server:
        settings.HUB_ENDPOINT, settings.HUB_ORGANISATION = server.url, hub_server.ORGANISATION
        settings.HF_TOKEN = hub_server.TOKEN
        yield server


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """All of it written, but for one packet that was set aside."""
    made = produced(make_campaign(settings, tmp_path, hub_name="small-words", license="odc-by"))
    ada = sit_down("ada")
    packets = ada.take(100)
    ada.hand_in(*(ada.result(packet) for packet in packets[:-1]))
    left = Packet.objects.get(pk=packets[-1].packet)
    missing = [[*key, ["copied"]] for key in messages.get_output_keys(left, made)]
    Packet.objects.filter(pk=left.pk).update(state="set_aside", missing=missing)
    finish(made)
    return made


def finish(made: Campaign) -> None:
    shards.update_shards()
    transitions.finish_complete_campaigns()
    made.refresh_from_db()


def publish() -> None:
    datasets.enqueue_datasets()
    Effect.objects.update(not_before=timezone.now())
    outbox.catch_up()


def there(hub: Hub) -> Repository:
    return hub.repositories["datasets/trains/small-words"]


def laid_out(files: dict[str, bytes], folder: Path) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def accepted() -> list[tuple[str, str]]:
    rows = Rephrasing.objects.filter(state="accepted").order_by("shard__number", "packet", "chunk", "style")
    return [(f"{row.packet_id}-{row.chunk}-{row.style}", row.text) for row in rows]


def test_datasets_reads_back_what_was_accepted(hub: Hub, campaign: Campaign, tmp_path: Path) -> None:
    assert campaign.state == "done"
    publish()
    effect = Effect.objects.get()
    assert (effect.state, effect.problem) == (Effect.State.DONE, "")
    folder = laid_out(there(hub).head.files, tmp_path / "got")
    from datasets import load_dataset

    read = load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert [(row["id"], row["text"]) for row in read] == accepted()
    assert len(read) == 2 * campaign.chunk_count - len(dataset_aside(folder))
    for row in read:
        assert hashlib.sha256(row["text"].encode()).hexdigest() == row["sha256"]
        assert hashlib.sha256(row["source"].encode()).hexdigest() == row["source_sha256"]


def dataset_aside(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "set_aside.jsonl").read_text().splitlines()]


def test_its_manifest_names_every_file_by_its_hash(hub: Hub, campaign: Campaign) -> None:
    publish()
    files = there(hub).head.files
    told = json.loads(files["manifest.json"])
    assert [shard["rows"] for shard in told["shards"]][:-1] == [10] * (len(told["shards"]) - 1)
    assert {shard["name"] for shard in told["shards"]} == {name for name in files if name.startswith("data/")}
    for shard in told["shards"]:
        assert hashlib.sha256(files[shard["name"]]).hexdigest() == shard["sha256"]
    assert hashlib.sha256(files["set_aside.jsonl"]).hexdigest() == told["set_aside"]["sha256"]
    assert told["set_aside"]["rows"] == files["set_aside.jsonl"].count(b'"copied"') > 0
    assert (told["model"], told["state"], told["rows"]) == ("tiny", "done", len(accepted()))


def test_its_card_says_how_it_was_made_and_thanks(hub: Hub, campaign: Campaign) -> None:
    Campaign.objects.update(about="A <b>small</b> one.")
    publish()
    _, head, card = there(hub).head.files["README.md"].decode().split("---\n", 2)
    told = yaml.safe_load(head)
    assert (told["license"], told["configs"][0]["data_files"][0]["path"]) == ("odc-by", "data/*.parquet")
    for sentence in (
        "# Small\n",
        "A \\<b\\>small\\</b\\> one.",
        f"| easy | {len(accepted()) // 2} |",
        "4 read, none dropped",
        "[WRAP](https://arxiv.org/abs/2401.16380) (Maini et al., 2024)",
        "License: odc-by.",
        "Thanks to 1 anonymous volunteer,",
        "The dataset is complete.",
    ):
        assert sentence in card, sentence


def test_it_goes_in_batches_each_once(hub: Hub, campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SHARDS_PER_COMMIT", 2)
    hub.fail("POST", r"/api/datasets/trains/small-words/commit", 503, times=1)
    publish()
    assert Effect.objects.get().state == Effect.State.WANTED
    publish()
    count = campaign.shards.count()
    commits = there(hub).commits[1:]
    assert len(commits) == -(-count // 2)
    assert hub.uploads() == count
    assert {shard.published_sha256 for shard in campaign.shards.all()} == {
        shard.blob.sha256 for shard in dataset_files.get_current_shards(campaign)
    }
    # Nothing new, nothing done; and what was published but not noted is not published again.
    assert datasets.enqueue_datasets() == 0
    campaign.shards.update(published_sha256="")
    publish()
    assert len(there(hub).commits[1:]) == len(commits)
    assert hub.uploads() == count


def test_what_was_withdrawn_leaves_the_hub(hub: Hub, campaign: Campaign) -> None:
    publish()
    before = json.loads(there(hub).head.files["manifest.json"])["rows"]
    ada = Rephrasing.objects.filter(state="accepted")[0].volunteer
    reputation.ban_volunteer(ada, "mara", "It was nonsense.")
    withdrawal.withdraw_banned()
    campaign.refresh_from_db()
    assert campaign.state == "running"
    assert datasets.enqueue_datasets() == 0, "its shards are being written anew"
    bob = sit_down("bob")
    while bob.write():
        pass
    finish(campaign)
    publish()
    files = there(hub).head.files
    told = json.loads(files["manifest.json"])
    assert told["rows"] == len(accepted()) >= before
    assert not Rephrasing.objects.filter(state="accepted", volunteer=ada).exists()
    assert sorted(shard["sha256"] for shard in told["shards"]) == sorted(
        hashlib.sha256(content).hexdigest() for name, content in files.items() if name.startswith("data/")
    )


def test_a_repository_of_somebody_else_is_left_alone(hub: Hub, campaign: Campaign) -> None:
    made = hub.repositories["datasets/trains/small-words"] = Repository()
    made.add("theirs", "Published-from: https://elsewhere/rephrase/other/", {})
    publish()
    effect = Effect.objects.get()
    assert (effect.state, "elsewhere" in effect.problem) == (Effect.State.REFUSED, True)
    assert len(made.commits) == 1


def test_a_finished_campaign_is_a_corpus(hub: Hub, campaign: Campaign, tmp_path: Path) -> None:
    publish()
    folder = laid_out(there(hub).head.files, tmp_path / "got")
    pin = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    documents = list(open_corpus(f"rephrased:{folder}@{pin}"))
    assert [(one.id, one.text) for one in documents] == accepted()
    both = list(open_corpus(f"rephrased:{folder}@{pin}+sources"))
    assert len(both) == len(documents) * 3 // 2, "two styles, and the chunk itself"
    assert len({one.id for one in both}) == len(both)
    with pytest.raises(CorpusError, match="another hash"):
        open_corpus(f"rephrased:{folder}@{'0' * 64}")
    shard = next((folder / "data").iterdir())
    shard.write_bytes(shard.read_bytes() + b"!")
    with pytest.raises(CorpusError, match="not the file"):
        list(open_corpus(f"rephrased:{folder}@{pin}"))


def test_a_finished_campaign_is_a_corpus_on_the_hub(
    hub: Hub, campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, file_download

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", constants.HUGGINGFACE_CO_URL_TEMPLATE)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    publish()
    pin = hashlib.sha256(there(hub).head.files["manifest.json"]).hexdigest()
    there(hub).add("later", "", {"manifest.json": b"{}"})  # what is published later changes nothing
    assert [(one.id, one.text) for one in open_corpus(f"rephrased:trains/small-words@{pin}")] == accepted()
    with pytest.raises(CorpusError, match="no manifest with the hash"):
        open_corpus(f"rephrased:trains/small-words@{'0' * 64}")
    with pytest.raises(CorpusError, match="cannot be read on the Hugging Face Hub"):
        open_corpus(f"rephrased:trains/nothing@{pin}")


def test_a_source_on_the_hub_is_pinned_and_read(hub: Hub, db: None, settings: Any, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": document(number)}) + "\n" for number in range(3)).encode()
    card = b"---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*.jsonl\n---\n"
    source = hub.repositories["datasets/owner/words"] = Repository()
    files = {"README.md": card, "en/train-0.jsonl": lines, "en/test-0.jsonl": b"{}\n", "de/train-0.jsonl": b"{}\n"}
    commit = source.add("texts", "", files)
    fields = {"source": "hub", "dataset": "owner/words", "config": "en", "split": "train", "revision": "main"}
    made = make_campaign(settings, tmp_path, **fields)
    source.add("later", "", {"README.md": card, "en/train-0.jsonl": b""})
    Campaign.objects.filter(pk=made.pk).update(revision=commit.id)
    made = produced(made)
    assert (made.source_error, made.revision, made.files) == ("", commit.id, ["en/train-0.jsonl"])
    assert (made.rows_read, made.is_exhausted) == (3, True)
    assert not (tmp_path / "sources" / str(made.pk)).exists(), "what was fetched is gone"
