"""Weights from the site itself, for everybody."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from leaderboard.models import Run
from leaderboard.publishing import weights
from scheduler import rate_limits, storage
from scheduler.models import JobFile, Node
from tests.leaderboard.conftest import finish, lease, upload

STEP = "checkpoints/step-00000020"


@pytest.fixture(autouse=True)
def fresh_rates() -> None:
    cache.clear()


@pytest.fixture
def finished(run: Run, node: Node) -> Run:
    done = finish(run, node)
    JobFile.objects.create(job_id=done.score_job_id, path="tokenizer.json", blob=storage.store_bytes(b"{}"))
    return done


def content(answer: Any) -> bytes:
    return b"".join(answer) if answer.streaming else answer.content


def status(client: Client, address: str, **extra: Any) -> int:
    answer = client.get(address, **extra)
    content(answer)
    return answer.status_code


def test_anybody_downloads_a_finished_runs_folder(client: Client, finished: Run) -> None:
    files = {file.path: content(client.get(file.url)) for file in weights.list_weight_files(finished)}
    assert sorted(files) == [f"{STEP}/model.safetensors", "run.json", "source.tar", "tokenizer.json"]
    assert files[f"{STEP}/model.safetensors"] == b"weights at 20"
    answer = client.get(f"/runs/{finished.pk}/weights/final/{STEP}/model.safetensors")
    assert answer["Content-Disposition"] == f'attachment; filename="run-{finished.pk}-model.safetensors"'
    assert answer["Content-Type"] == "application/octet-stream"
    assert content(answer) == b"weights at 20"


def test_a_download_goes_on_where_it_broke(client: Client, finished: Run) -> None:
    address = f"/runs/{finished.pk}/weights/final/{STEP}/model.safetensors"
    rest = client.get(address, headers={"Range": "bytes=8-"})
    assert (rest.status_code, content(rest)) == (206, b"at 20")
    assert client.get(address, headers={"Range": "bytes=900-"}).status_code == 416


def test_the_optimizer_and_what_is_not_there_are_404(client: Client, finished: Run, node: Node) -> None:
    checkpoint = finished.checkpoint
    assert checkpoint
    momenta = storage.store_bytes(b"momenta")
    checkpoint.manifest["files"].append(storage.build_file_reference(momenta, "optimizer.pt").model_dump())
    checkpoint.save()
    checkpoint.blobs.add(momenta)
    for path in (f"{STEP}/optimizer.pt", "../run.json", "run.json/", "items.jsonl.gz"):
        assert client.get(f"/runs/{finished.pk}/weights/final/{path}").status_code == 404, path
    assert client.get(f"/runs/{finished.pk}/weights/30-percent/run.json").status_code == 404
    assert client.get("/runs/987654/weights/final/run.json").status_code == 404


def test_a_run_under_way_gives_nothing(client: Client, run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    upload(run.job, 10)
    assert weights.list_weight_files(run) == []
    assert client.get(f"/runs/{run.pk}/weights/final/run.json").status_code == 404


def test_one_address_downloads_so_often_an_hour(client: Client, finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rate_limits.PER_HOUR, "download", 2)
    address = f"/runs/{finished.pk}/weights/final/run.json"
    assert [status(client, address) for _ in range(3)] == [200, 200, 429]
    answer = client.get(address)
    assert 0 < int(answer["Retry-After"]) <= 3600
    assert answer.content.startswith(b"Too many requests from this IP address.")
    assert status(client, address, REMOTE_ADDR="203.0.113.9") == 200


def test_the_runs_page_offers_them(client: Client, finished: Run) -> None:
    page = client.get(f"/runs/{finished.pk}/").content.decode()
    assert f'href="/runs/{finished.pk}/weights/final/{STEP}/model.safetensors"' in page
