"""`dailytrain rephrase check` and `calibrate`: files of pairs in, words or JSON out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.genesis import passages
from tests.support.rephrasings import GOOD, SOURCE
from trainer.cli.main import main


def write(path: Path, rows: list[tuple[str, str, str]]) -> str:
    lines = [json.dumps({"source": source, "style": style, "output": output}) for source, style, output in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_rephrase_check_prints_line_per_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(SOURCE, style, output) for style, output in GOOD.items()]
    rows += [(SOURCE, "medium", SOURCE), (SOURCE, "easy", ""), (SOURCE, "easy", GOOD["easy"])]
    assert main(["rephrase", "check", write(tmp_path / "pairs.jsonl", rows), "--json"]) == 0
    output = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert output[: len(GOOD)] == [{"accepted": True, "reasons": []}] * len(GOOD)
    assert output[len(GOOD) :] == [
        {"accepted": False, "reasons": [reason]} for reason in ("copied", "empty", "duplicate")
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2 is not JSON."),
        ("[1]", 'line 2 is not an object with the strings "source", "style" and "output".'),
        ('{"source": "a", "style": "easy"}', 'line 2 is not an object with the strings "source"'),
        ('{"source": "a", "style": "poem", "output": "b"}', "line 2 has the style 'poem'"),
    ],
)
def test_rephrase_check_bad_line_prints_one_error(
    tmp_path: Path, refuse: Callable[..., str], line: str, sentence: str
) -> None:
    path = Path(write(tmp_path / "pairs.jsonl", [(SOURCE, "easy", GOOD["easy"])]))
    path.write_text(path.read_text() + line + "\n")
    assert sentence in refuse("rephrase", "check", path, "--json")
    assert "nowhere.jsonl cannot be read: No such file" in refuse("rephrase", "check", "nowhere.jsonl")


def test_calibrate_good_sample_keeps_it_rejects_mismatched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(one["king_james"], "medium", one["world"]) for one in passages()[:300]]
    sample, out = write(tmp_path / "sample.jsonl", rows), tmp_path / "thresholds.json"
    assert main(["rephrase", "calibrate", sample, "--accepted-share", "0.98", "--json", "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == found
    assert list(found["thresholds"]) == ["medium"]
    assert found["measured"]["medium"]["kept"] >= 0.97
    assert found["measured"]["medium"]["mismatched_rejected"] > 0.99
    assert main(["rephrase", "check", sample, "--thresholds", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("29")
    assert main(["rephrase", "calibrate", write(tmp_path / "fewer.jsonl", rows[:60])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:16].strip() for line in lines] == ["", "medium, start", "medium, proposed"]
    assert main(["rephrase", "calibrate", write(tmp_path / "small.jsonl", rows[:9])]) == 2
    assert "No style has 50 outputs" in capsys.readouterr().err
