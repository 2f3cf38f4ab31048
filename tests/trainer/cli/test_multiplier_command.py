"""`dailytrain multiplier`: exact JSON, a table for people, one line for what cannot be used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.simulated_tracks import Night, record
from trainer.cli.main import main


def write(folder: Path, document: object) -> str:
    path = folder / "runs.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return str(path)


def test_json_output_has_documented_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    night = Night(seed=7).ladder().entry("new", 1.2, 3).entry("twin", 1.2, 2)
    assert main(["multiplier", write(tmp_path, night.records), "--baseline", "gpt", "--axis", "flops", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["entries", "ladder"]
    assert list(printed["ladder"]) == ["b0", "slope", "curvature", "sigma"]
    fields = ["entry", "cm", "low", "high", "runs", "verdict", "tied_with", "seeds_needed", "extrapolated"]
    assert all(list(entry) == fields for entry in printed["entries"])
    new = next(entry for entry in printed["entries"] if entry["entry"] == "new")
    assert new["low"] < 1.2 < new["high"]
    assert printed == night.board().to_dict()
    row = {"multiplier": new, "runs": night.records}
    assert main(["multiplier", write(tmp_path, row), "--baseline", "gpt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == printed, "a row that was downloaded from a board"
    records = [record("gpt", seed, at, 1.0) for seed, at in enumerate((0.5, 1.0, 2.0))] + [record("new", 0, 1.0, 1.0)]
    assert main(["multiplier", write(tmp_path, records), "--baseline", "gpt", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert {entry["cm"] for entry in printed["entries"]} == {None}


def test_default_output_is_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    night = Night(seed=7).ladder().entry("new", 1.2, 3).entry("[red]far", 4.0, 1)
    assert main(["multiplier", write(tmp_path, night.records), "--baseline", "gpt", "--full", "1e18"]) == 0
    printed = capsys.readouterr().out
    assert "better than the baseline" in printed
    assert "[red]far" in printed
    assert "* extrapolated beyond the ladder's rungs." in printed
    assert "At 1e+18 FLOPs, over the ladder of gpt: 22 runs." in printed


GOOD = record("gpt", 1, 1.0, 1.02)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("", "the file is empty"),
        ("[", "is not JSON"),
        ("{}", 'Expected a list of runs, or an object with a list under "runs".'),
        ([3], "Run 1 is not an object."),
        ([GOOD, {"entry": "gpt", "seed": 1}], "Run 2 has no flops, seconds, bits_per_byte."),
        ([{**GOOD, "bits_per_byte": math.nan}], "bits_per_byte must be a number above 0"),
        ([{**GOOD, "flops": -1}], "flops must be a number above 0 and up to 1e+300, not -1."),
        ([{**GOOD, "seconds": "3"}], "seconds must be a number above 0 and up to 1e+300, not '3'."),
        ([{**GOOD, "seed": 1.5}], "seed must be a whole number, not 1.5."),
        ([{**GOOD, "entry": "other"}], "No run is of 'gpt'. Entries: other."),
        ([{**GOOD, "flops": None}], "No run of the baseline 'gpt' has its flops."),
    ],
)
def test_bad_file_prints_one_line(tmp_path: Path, refuse: Callable[..., str], document: object, complaint: str) -> None:
    assert complaint in refuse("multiplier", write(tmp_path, document), "--baseline", "gpt", "--json")
