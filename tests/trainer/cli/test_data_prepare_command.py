from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.waits import WAIT_SECONDS
from trainer.cli.prepare import main
from trainer.data.dataset import Dataset

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))


ARGUMENTS = ["--corpus", "python-docs", "--tokenizer", "bpe:512", "--limit-bytes", "64KiB"]


def test_json_is_the_only_standard_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [*ARGUMENTS, "--out", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    dataset = Dataset.open(answer["path"])
    assert answer["path"] == str(tmp_path / "out")
    assert (answer["hash"], answer["tokenizer_sha256"]) == (dataset.hash, dataset.tokenizer.sha256)
    assert sum(split["bytes"] for split in answer["splits"].values()) == 64 << 10
    assert "Tokenizing" in printed.err
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert (json.loads(printed.out), printed.err) == (answer, ""), "the dataset is reused"
    assert main([*arguments, "--quiet"]) == 0
    assert f"hash {answer['hash']}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stop_exits_130_and_the_same_command_continues(tmp_path: Path, stop: signal.Signals) -> None:
    arguments = ["--corpus", "python-docs", "--out", str(tmp_path / "out"), "--json"]
    command = [sys.executable, "-m", "trainer.cli.prepare", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (tmp_path / ".out.preparing" / "spool").exists():
        time.sleep(0.01)
    process.send_signal(stop)
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "dailytrain prepare: interrupted; the same command continues here"
    assert "Traceback" not in err
    assert main([*arguments, "--quiet"]) == 0
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"out"}
