"""Downloads of a dataset from the site, without the Hub."""

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
from tests.support.volunteers import fill_campaign, make_campaign, start_volunteer
from trainer.data.corpora import open_corpus


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """A finished campaign on a site without a Hub."""
    settings.HUB_ORGANIZATION = settings.HF_TOKEN = ""
    campaign = fill_campaign(make_campaign(settings, tmp_path))
    assert Client().get(f"{campaign.get_absolute_url()}files/manifest.json").status_code == 404
    ada = start_volunteer("ada")
    ada.submit(*(ada.result(packet) for packet in ada.take(100)))
    shards.update_shards()
    transitions.finish_complete_campaigns()
    campaign.refresh_from_db()
    return campaign


def read_body(response: Any) -> bytes:
    return b"".join(response.streaming_content) if response.streaming else response.content


def download_dataset(campaign: Campaign, client: Client, folder: Path) -> Path:
    """Download the manifest and every file in it, as `docs/how-to/campaigns.md` describes."""
    root = f"{campaign.get_absolute_url()}files/"
    shards = json.loads(client.get(f"{root}manifest.json").content)["shards"]
    hashes = {shard["name"]: shard["sha256"] for shard in shards}
    for name in ("manifest.json", "README.md", "set_aside.jsonl", *hashes):
        response = client.get(root + name)
        assert response.status_code == 200
        content = read_body(response)
        sha256 = hashlib.sha256(content).hexdigest()
        assert response.headers["ETag"] == f'"{sha256}"'
        assert hashes.get(name, sha256) == sha256
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_downloaded_dataset_loads_with_datasets_and_corpora(campaign: Campaign, client: Client, tmp_path: Path) -> None:
    from datasets import load_dataset

    folder = download_dataset(campaign, client, tmp_path / "got")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    rows = list(load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache")))
    assert {row["sha256"] for row in rows} == set(Rephrasing.objects.values_list("sha256", flat=True))
    assert len(rows) == manifest["rows"] > 10
    assert manifest["state"] == "done"
    pin = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert len(list(open_corpus(f"rephrased:{folder}@{pin}"))) == len(rows)


def test_download_supports_ranges_and_etags(campaign: Campaign, client: Client) -> None:
    root = f"{campaign.get_absolute_url()}files/"
    path = f"{root}data/shard-00000.parquet"
    response = client.get(path)
    content, tag = read_body(response), response.headers["ETag"]
    partial = client.get(path, headers={"Range": "bytes=100-", "If-Range": tag})
    assert (partial.status_code, read_body(partial)) == (206, content[100:])
    full = client.get(path, headers={"Range": "bytes=100-", "If-Range": '"another"'})
    assert (full.status_code, read_body(full)) == (200, content), "another file gets no partial response"
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    manifest = f"{root}manifest.json"
    assert client.get(manifest, headers={"If-None-Match": client.get(manifest).headers["ETag"]}).status_code == 304


def test_download_of_unknown_path_or_over_limit_is_refused(
    campaign: Campaign, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{campaign.get_absolute_url()}files/"
    for path in ("data/shard-99999.parquet", "../manage.py", "data/", "other.json"):
        assert client.get(root + path).status_code == 404
    monkeypatch.setitem(rate_limits.PER_HOUR, "download", 0)
    response = client.get(f"{root}manifest.json")
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) > 0


def test_download_from_draft_is_not_found(campaign: Campaign, client: Client) -> None:
    Campaign.objects.filter(pk=campaign.pk).update(state=Campaign.State.DRAFT)
    assert client.get(f"{campaign.get_absolute_url()}files/manifest.json").status_code == 404
