"""Downloaded results: `dailytrain multiplier` on the JSON file gives the digits of the page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from leaderboard.models import Run
from leaderboard.rankings import trust
from tests.support import boards
from trainer.cli.multiplier import main

pytestmark = pytest.mark.django_db


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
    boards.create_board()
    response = client.get(f"/tracks/small/results.json?axis={axis}")
    results = response.json()
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


def test_entry_results_reproduce_its_estimate(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, entries = boards.create_board()
    record_entry = entries["Better"]
    response = client.get(f"/entries/{record_entry.pk}/results.json")
    results = response.json()
    printed = run_multiplier_command(results["command"], response.content, tmp_path, capsys)
    (own_estimate,) = (estimate for estimate in printed["entries"] if estimate["entry"] == results["entry"])
    assert own_estimate == {name: results["estimate"][name] for name in own_estimate}
    assert results["baseline"] == f"entry-{entries['baseline'].pk}"


def test_track_results_list_runs_with_provenance(client: Client) -> None:
    _, entries = boards.create_board()
    void_run = boards.create_scored_run(
        entries["Level"], 1.0, seed=7, seconds_void="Its node's speed changed by +3.0%."
    )
    disputed_run = boards.create_scored_run(entries["Level"], 1.0, seed=8, trust=Run.Trust.DISPUTED)
    results = client.get("/tracks/small/results.json").json()
    (record,) = (record for record in results["runs"] if record["run"] == void_run.pk)
    assert record == {
        "look_ahead_stderr": None,
        "entry": f"entry-{void_run.entry_id}",
        "seed": 7,
        "flops": void_run.train_flops,
        "seconds": None,
        "bits_per_byte": void_run.bits_per_byte,
        "run": void_run.pk,
        "title": "Level",
        "budget": "1e13flops",
        "seconds_void": "Its node's speed changed by +3.0%.",
    }
    assert results["left_out"] == [{"run": disputed_run.pk, "reason": "It is disputed."}]


def test_entry_results_are_304_until_a_run_changes(client: Client) -> None:
    _, entries = boards.create_board()
    address = f"/entries/{entries['Better'].pk}/results.json"
    etag = client.get(address)["ETag"]
    assert client.get(address, headers={"if-none-match": etag}).status_code == 304
    run = entries["Better"].runs.earliest("pk")
    trust.apply_trust_event(run, trust.TrustEvent.DISPUTE, actor="mara", message="Looks odd.")
    assert client.get(address, headers={"if-none-match": etag}).status_code == 200


def test_track_results_without_ladder_give_problem(client: Client) -> None:
    boards.create_ladder_track()
    results = client.get("/tracks/small/results.json").json()
    assert (results["printed"], results["runs"]) == (None, [])
    assert "has not arrived yet" in results["problem"]


def test_track_results_without_baseline_give_problem(client: Client) -> None:
    track, _ = boards.create_ladder_track()
    track.season.baseline = None
    track.season.save()
    results = client.get("/tracks/small/results.json").json()
    assert results["baseline"] is None
    assert "no baseline yet" in results["problem"]


@pytest.mark.parametrize("address", ["/tracks/nowhere/results.json", "/entries/999999/results.json"])
def test_results_of_missing_row_are_404(client: Client, address: str) -> None:
    assert client.get(address).status_code == 404
