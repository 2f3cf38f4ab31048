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
from tests.support.volunteers import start_volunteer
from trainer.data.corpora import open_corpus


@pytest.fixture
def done_campaign(campaign: Campaign, settings: Any) -> Campaign:
    """A finished campaign on a site without a Hub."""
    settings.HUB_ORGANIZATION = settings.HF_TOKEN = ""
    assert Client().get(f"{campaign.get_absolute_url()}files/manifest.json").status_code == 404
    start_volunteer("ada").rephrase(100)
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


def test_downloaded_dataset_opens_as_corpus(done_campaign: Campaign, client: Client, tmp_path: Path) -> None:
    folder = download_dataset(done_campaign, client, tmp_path / "got")
    content = (folder / "manifest.json").read_bytes()
    manifest, pin = json.loads(content), hashlib.sha256(content).hexdigest()
    texts = {document.text for document in open_corpus(f"rephrased:{folder}@{pin}")}
    assert texts == set(Rephrasing.objects.values_list("text", flat=True))
    assert (manifest["state"], manifest["rows"]) == ("done", len(texts))


def test_download_supports_ranges_and_etags(done_campaign: Campaign, client: Client) -> None:
    root = f"{done_campaign.get_absolute_url()}files/"
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


def test_download_of_unknown_path_over_limit_or_from_a_draft_is_refused(
    done_campaign: Campaign, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{done_campaign.get_absolute_url()}files/"
    for path in ("data/shard-99999.parquet", "../manage.py", "data/", "other.json"):
        assert client.get(root + path).status_code == 404
    with monkeypatch.context() as patch:
        patch.setitem(rate_limits.PER_HOUR, "download", 0)
        response = client.get(f"{root}manifest.json")
        assert response.status_code == 429
        assert int(response.headers["Retry-After"]) > 0
    Campaign.objects.update(state=Campaign.State.DRAFT)
    assert client.get(f"{root}manifest.json").status_code == 404
