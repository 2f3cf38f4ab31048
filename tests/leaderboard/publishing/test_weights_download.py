"""Downloads of weights from the site, open to everyone."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from leaderboard.models import Run
from leaderboard.publishing import publications, weights
from scheduler import rate_limits, storage
from scheduler.models import JobFile, Node
from tests.leaderboard.conftest import finish_run

STEP = "checkpoints/step-00000020"


@pytest.fixture
def finished_run(run: Run, node: Node) -> Run:
    scored_run = finish_run(run, node)
    JobFile.objects.create(job_id=scored_run.score_job_id, path="tokenizer.json", blob=storage.store_bytes(b"{}"))
    return scored_run


def read_content(response: Any) -> bytes:
    return b"".join(response) if response.streaming else response.content


def get_status(client: Client, address: str, **extra: Any) -> int:
    response = client.get(address, **extra)
    read_content(response)
    return response.status_code


def test_weights_download_has_ranges_and_no_optimizer(client: Client, finished_run: Run, node: Node) -> None:
    checkpoint = finished_run.checkpoint
    momenta = storage.store_bytes(b"momenta")
    checkpoint.manifest["files"].append(storage.build_file_reference(momenta, "optimizer.pt").model_dump())
    checkpoint.save()
    checkpoint.blobs.add(momenta)
    for path in (f"{STEP}/optimizer.pt", "../run.json", "run.json/", "items.jsonl.gz"):
        assert client.get(f"/runs/{finished_run.pk}/weights/final/{path}").status_code == 404, path
    assert client.get(f"/runs/{finished_run.pk}/weights/30-percent/run.json").status_code == 404
    assert client.get("/runs/987654/weights/final/run.json").status_code == 404
    address = f"/runs/{finished_run.pk}/weights/final/{STEP}/model.safetensors"
    partial = client.get(address, headers={"Range": "bytes=8-"})
    assert (partial.status_code, read_content(partial)) == (206, b"at 20")
    assert client.get(address, headers={"Range": "bytes=900-"}).status_code == 416


@pytest.mark.usefixtures("rate_limit_clock")
def test_weights_downloads_per_address_are_rate_limited(
    client: Client, finished_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rate_limits.PER_HOUR, "download", 2)
    address = f"/runs/{finished_run.pk}/weights/final/run.json"
    assert [get_status(client, address) for _ in range(3)] == [200, 200, 429]
    response = client.get(address)
    assert 0 < int(response["Retry-After"]) <= 3600
    assert response.content.startswith(b"Too many requests from this IP address.")
    assert get_status(client, address, REMOTE_ADDR="203.0.113.9") == 200


def test_sharded_weights_are_downloadable_by_file(client: Client, finished_run: Run) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    blobs = [storage.store_bytes(name.encode()) for name in names]
    files = [storage.build_file_reference(blob, name) for blob, name in zip(blobs, names, strict=True)]
    finished_run.checkpoint.manifest["files"] = [file.model_dump() for file in files]
    finished_run.checkpoint.save()
    finished_run.checkpoint.blobs.set(blobs)
    paths = [path for path, _ in weights.find_weight_blobs(finished_run, "final")]
    contents = {path: read_content(client.get(f"/runs/{finished_run.pk}/weights/final/{path}")) for path in paths}
    assert {name: contents[f"{STEP}/{name}"] for name in names} == {name: name.encode() for name in names}
    page = client.get(f"/runs/{finished_run.pk}/").content.decode()
    assert all(f'href="/runs/{finished_run.pk}/weights/final/{STEP}/{name}"' in page for name in names)
    publications.publish_run(finished_run, "")
    (publication,) = publications.list_publications(finished_run)
    assert publication["here"].endswith(names[-1]), "the link is to the index of the shards"
