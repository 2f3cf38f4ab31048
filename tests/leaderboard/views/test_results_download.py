"""Downloaded results: `dailytrain multiplier` on the JSON file gives the digits of the page."""

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
