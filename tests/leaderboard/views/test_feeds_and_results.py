"""Atom feeds, and downloaded results, on which `dailytrain multiplier` gives the digits of the page."""

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
        assert f"{estimate['low']:.3f}\xa0to\xa0{estimate['high']:.3f}" in page
