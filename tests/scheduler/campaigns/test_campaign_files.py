"""A campaign without a Hub: its dataset is downloaded from the site, and read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from scheduler import rate_limits
from scheduler.campaigns import shards, transitions
from scheduler.campaigns.models import Campaign, Rephrasing
from tests.support.volunteers import make_campaign, produced, sit_down
from trainer.data.corpora import open_corpus


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """All of it written, and no Hub anywhere."""
    settings.HUB_ORGANISATION = settings.HF_TOKEN = ""
    made = produced(make_campaign(settings, tmp_path))
    assert Client().get(f"{made.get_absolute_url()}files/manifest.json").status_code == 404
    ada = sit_down("ada")
    ada.hand_in(*(ada.result(packet) for packet in ada.take(100)))
    shards.update_shards()
    transitions.finish_complete_campaigns()
    made.refresh_from_db()
    return made


def body(answer: Any) -> bytes:
    return b"".join(answer.streaming_content) if answer.streaming else answer.content


def downloaded(campaign: Campaign, client: Client, folder: Path) -> Path:
    """Download the manifest and every file that it names, as the documentation says."""
    root = f"{campaign.get_absolute_url()}files/"
    shards = json.loads(client.get(f"{root}manifest.json").content)["shards"]
    hashes = {shard["name"]: shard["sha256"] for shard in shards}
    for name in ("manifest.json", "README.md", "set_aside.jsonl", *hashes):
        answer = client.get(root + name)
        assert answer.status_code == 200
        content = body(answer)
        sha256 = hashlib.sha256(content).hexdigest()
        assert answer.headers["ETag"] == f'"{sha256}"'
        assert hashes.get(name, sha256) == sha256
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_datasets_reads_what_was_downloaded(campaign: Campaign, client: Client, tmp_path: Path) -> None:
    from datasets import load_dataset

    folder = downloaded(campaign, client, tmp_path / "got")
    told = json.loads((folder / "manifest.json").read_bytes())
    rows = list(load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache")))
    assert {row["sha256"] for row in rows} == set(Rephrasing.objects.values_list("sha256", flat=True))
    assert len(rows) == told["rows"] > 10
    assert told["state"] == "done"
    # And so does a train of ours.
    pin = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert len(list(open_corpus(f"rephrased:{folder}@{pin}"))) == len(rows)


def test_what_broke_goes_on_and_what_is_known_is_not_sent_again(campaign: Campaign, client: Client) -> None:
    root = f"{campaign.get_absolute_url()}files/"
    path = f"{root}data/shard-00000.parquet"
    whole = client.get(path)
    content, tag = body(whole), whole.headers["ETag"]
    rest = client.get(path, headers={"Range": "bytes=100-", "If-Range": tag})
    assert (rest.status_code, body(rest)) == (206, content[100:])
    other = client.get(path, headers={"Range": "bytes=100-", "If-Range": '"another"'})
    assert (other.status_code, body(other)) == (200, content), "it is not the file that was begun"
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    manifest = f"{root}manifest.json"
    assert client.get(manifest, headers={"If-None-Match": client.get(manifest).headers["ETag"]}).status_code == 304


def test_there_is_nothing_but_its_files_and_not_too_often(
    campaign: Campaign, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{campaign.get_absolute_url()}files/"
    for path in ("data/shard-99999.parquet", "../manage.py", "data/", "other.json"):
        assert client.get(root + path).status_code == 404
    monkeypatch.setitem(rate_limits.PER_HOUR, "download", 0)
    refused = client.get(f"{root}manifest.json")
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 0


def test_a_campaign_that_has_not_begun_shows_nothing(campaign: Campaign, client: Client) -> None:
    Campaign.objects.filter(pk=campaign.pk).update(state=Campaign.State.DRAFT)
    assert client.get(f"{campaign.get_absolute_url()}files/manifest.json").status_code == 404
