"""Atom feeds, weights, and results on which `dailytrain multiplier` gives the digits of the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from django.test import Client
from django.utils import timezone

from leaderboard.models import Entry, Run
from scheduler import rate_limits, storage
from scheduler.models import JobFile, Node
from tests.leaderboard.conftest import finish_run
from tests.support import boards, scene
from trainer.cli.multiplier import main

pytestmark = pytest.mark.django_db
ATOM = "{http://www.w3.org/2005/Atom}"


def read_feed(client: Client) -> ElementTree.Element:
    """Read the feed of records and check the elements that RFC 4287 requires of it and its entries."""
    response = client.get("/feeds/records.atom")
    assert response["Content-Type"] == "application/atom+xml; charset=utf-8"
    feed = ElementTree.fromstring(response.content)  # noqa: S314 (our own)
    assert feed.tag == f"{ATOM}feed"
    assert [link.get("href") for link in feed.findall(f"{ATOM}link") if link.get("rel") == "self"]
    for element in (feed, *feed.iter(f"{ATOM}entry")):
        for name in ("id", "title", "updated"):
            assert len(element.findall(f"{ATOM}{name}")) == 1, name
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", element.findtext(f"{ATOM}updated") or "")
    assert feed.find(f"{ATOM}author/{ATOM}name") is not None
    return feed


def test_records_feed_has_multiplier_and_keeps_entry_id_after_changes(client: Client) -> None:
    _, entries = boards.create_board()
    entry = entries["Better"]
    scene.confirm_record(entry)
    Entry.objects.filter(pk=entry.pk).update(title="Better & <b>faster</b>")
    fields = {"trust": Run.Trust.RECORD, "purpose": Run.Purpose.CONFIRMATION, "finished_at": timezone.now()}
    Run.objects.filter(entry=entry).update(**fields)
    (first,) = read_feed(client).iter(f"{ATOM}entry")
    assert (first.findtext(f"{ATOM}title") or "").startswith("Better & <b>faster</b>: multiplier 1.")
    assert f"/entries/{entry.pk}/" in first.find(f"{ATOM}link").get("href", "")  # type: ignore[union-attr]
    assert "95 % interval" in (first.findtext(f"{ATOM}summary") or "")
    Entry.objects.filter(pk=entry.pk).update(title="Renamed")
    Run.objects.filter(entry=entry).update(revision=99)
    (changed,) = read_feed(client).iter(f"{ATOM}entry")
    assert changed.findtext(f"{ATOM}id") == first.findtext(f"{ATOM}id")
    assert (changed.findtext(f"{ATOM}title") or "").startswith("Renamed")


def run_multiplier_command(
    command: str, content: bytes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """Save the downloaded file, run the command that it names, and return the printed JSON."""
    file = folder / "results.json"
    file.write_bytes(content)
    _, verb, name, *rest = shlex.split(command)
    assert (verb, name) == ("multiplier", "results.json")
    assert main([str(file), *rest]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


@pytest.mark.parametrize("axis", ["flops", "seconds"])
def test_track_results_reproduce_numbers_of_board_and_api(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], axis: str
) -> None:
    _, entries = boards.create_board()
    fields = {"seconds_void": "Its node's speed changed by +3.0%."}
    void_run = boards.create_scored_run(entries["Level"], 1.0, seed=7, **fields)
    disputed_run = boards.create_scored_run(entries["Level"], 1.0, seed=8, trust=Run.Trust.DISPUTED)
    response = client.get(f"/tracks/small/results.json?axis={axis}")
    results = response.json()
    assert results["left_out"] == [{"run": disputed_run.pk, "reason": "It is disputed."}]
    (record,) = (record for record in results["runs"] if record["run"] == void_run.pk)
    assert (record["seconds"], record["seconds_void"]) == (None, fields["seconds_void"])
    printed = run_multiplier_command(results["command"], response.content, tmp_path, capsys)
    assert printed == results["printed"]
    assert json.dumps(printed) == json.dumps(results["printed"])
    assert len(printed["entries"]) == 4

    by_name = {estimate["entry"]: estimate for estimate in printed["entries"]}
    for row in client.get(f"/api/v1/tracks/small/board?axis={axis}").json():
        estimate_data = row["estimate"]
        assert {name: estimate_data[name] for name in by_name[estimate_data["entry"]]} == by_name[
            estimate_data["entry"]
        ]
        assert estimate_data["entry"] == f"entry-{row['entry']}"
        assert (estimate_data["axis"], estimate_data["full"]) == (axis, results["full"])

    page = client.get(f"/?axis={axis}").content.decode()
    for estimate in printed["entries"]:
        assert f"{estimate['cm']:.3f}" in page
        if estimate["entry"] == results["baseline"]:
            continue  # 1 by definition
        assert f"{estimate['low']:.3f}\xa0to\xa0{estimate['high']:.3f}" in page


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
