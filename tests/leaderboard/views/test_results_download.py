"""Anyone can check a row: the downloaded JSON through `dailytrain multiplier` gives the printed digits."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from leaderboard.models import Run
from tests.support import boards
from trainer.cli.multiplier import main

pytestmark = pytest.mark.django_db


def checked(command: str, content: bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Save what was downloaded, run the command that it names, and return what this prints."""
    file = folder / "results.json"
    file.write_bytes(content)
    _, verb, name, *rest = shlex.split(command)
    assert (verb, name) == ("multiplier", "results.json")
    assert main([str(file), *rest]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


@pytest.mark.parametrize("axis", ["flops", "seconds"])
def test_the_tracks_file_gives_the_numbers_of_board_and_api(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], axis: str
) -> None:
    boards.board()
    answer = client.get(f"/tracks/small/results.json?axis={axis}")
    found = answer.json()
    printed = checked(found["command"], answer.content, tmp_path, capsys)
    assert printed == found["printed"]
    assert json.dumps(printed) == json.dumps(found["printed"])
    assert len(printed["entries"]) == 4

    by_name = {estimate["entry"]: estimate for estimate in printed["entries"]}
    for row in client.get(f"/api/v1/tracks/small/board?axis={axis}").json():
        told = row["estimate"]
        assert {name: told[name] for name in by_name[told["entry"]]} == by_name[told["entry"]]
        assert told["entry"] == f"entry-{row['entry']}"
        assert (told["axis"], told["full"]) == (axis, found["full"])

    page = client.get(f"/?axis={axis}").content.decode()
    for estimate in printed["entries"]:
        assert f"{estimate['cm']:.3f}" in page
        assert f"{estimate['low']:.3f}\xa0to\xa0{estimate['high']:.3f}" in page


def test_an_entrys_file_has_its_own_line_and_the_whole_ladder(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, entries = boards.board()
    better = entries["Better"]
    answer = client.get(f"/entries/{better.pk}/results.json")
    found = answer.json()
    printed = checked(found["command"], answer.content, tmp_path, capsys)
    (own,) = (estimate for estimate in printed["entries"] if estimate["entry"] == found["entry"])
    assert own == {name: found["estimate"][name] for name in own}
    assert found["baseline"] == f"entry-{entries['baseline'].pk}"


def test_the_records_are_plain_and_say_where_they_come_from(client: Client) -> None:
    _, entries = boards.board()
    void = boards.judged(entries["Level"], 1.0, seed=7, seconds_void="Its node's speed changed by +3.0%.")
    out = boards.judged(entries["Level"], 1.0, seed=8, trust=Run.Trust.DISPUTED)
    found = client.get("/tracks/small/results.json").json()
    (record,) = (record for record in found["runs"] if record["run"] == void.pk)
    assert record == {
        "entry": f"entry-{void.entry_id}",
        "seed": 7,
        "flops": void.train_flops,
        "seconds": None,
        "bits_per_byte": void.bits_per_byte,
        "run": void.pk,
        "title": "Level",
        "budget": "1e13flops",
        "seconds_void": "Its node's speed changed by +3.0%.",
    }
    assert found["left_out"] == [{"run": out.pk, "reason": "It is disputed."}]


def test_a_file_is_304_until_a_run_changes(client: Client) -> None:
    _, entries = boards.board()
    address = f"/entries/{entries['Better'].pk}/results.json"
    etag = client.get(address)["ETag"]
    assert client.get(address, headers={"if-none-match": etag}).status_code == 304
    run = entries["Better"].runs.earliest("pk")
    run.change_state("cancelled", since=["finished"], actor="mara", message="Taken back.")
    assert client.get(address, headers={"if-none-match": etag}).status_code == 200


def test_before_there_is_a_ladder_the_file_says_why_there_are_no_numbers(client: Client) -> None:
    boards.small()
    found = client.get("/tracks/small/results.json").json()
    assert (found["printed"], found["runs"]) == (None, [])
    assert "has not arrived yet" in found["problem"]


def test_a_season_without_a_baseline_has_a_file_too(client: Client) -> None:
    track, _ = boards.small()
    track.season.baseline = None
    track.season.save()
    found = client.get("/tracks/small/results.json").json()
    assert found["baseline"] is None
    assert "no baseline yet" in found["problem"]


@pytest.mark.parametrize("address", ["/tracks/nowhere/results.json", "/entries/999999/results.json"])
def test_what_is_not_there_is_not_found(client: Client, address: str) -> None:
    assert client.get(address).status_code == 404
