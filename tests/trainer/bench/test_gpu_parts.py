"""`benchmarks/gpu.sh`: its parts start on a CPU, a part that succeeded is kept, and the table compares."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu.__main__ import describe_part, list_wheels, main, read_record, run_process_group
from benchmarks.gpu.expectations import Expectation
from benchmarks.gpu.parts import list_parts
from tests.support.paths import REPOSITORY
from tests.support.waits import wait_until


@pytest.mark.parametrize(
    ("low", "high", "measured", "verdict"),
    [
        (1.0, 2.0, 1.0, "as expected"),
        (1.0, 2.0, 0.5, "lower"),
        (None, 2.0, 2.5, "higher"),
        (None, None, 7.0, "measured"),
        (1.0, 2.0, None, "missing"),
    ],
)
def test_expectation_measured_value_gets_a_verdict(
    low: float | None, high: float | None, measured: float | None, verdict: str
) -> None:
    assert Expectation("figure", lambda content: content["figure"], low, high).judge(measured) == verdict


def test_failed_part_is_repeated_and_finished_part_is_kept(tmp_path: Path) -> None:
    flags = ["--smoke", "--out", str(tmp_path), "--only", "prepare"]
    out = tmp_path / "smoke"
    prepare = next(part for part in list_parts(out) if part.name == "prepare")
    out.mkdir()
    (out / "dataset").write_text("a file in the way of the folder")
    assert main(flags) == 1
    failed = read_record(out, prepare)
    assert failed is not None
    assert failed["code"] != 0
    assert [row[-1].partition(":")[2] for row in describe_part(prepare, failed, True)] == [" see prepare.log"]
    (out / "dataset").unlink()
    assert main(flags) == 0
    record = read_record(out, prepare)
    assert main(flags) == 0
    assert read_record(out, prepare) == record
    assert [path.name for path in tmp_path.iterdir()] == ["smoke"], "a benchmark on a GPU prepares its own dataset"


@pytest.mark.slow
def test_part_out_of_time_ends_with_all_that_it_started(tmp_path: Path) -> None:
    with (tmp_path / "part.log").open("wb") as log:
        code, printed = run_process_group(["sh", "-c", "sleep 600 & echo $!; wait"], log, 5, os.environ)
    assert code == -1
    wait_until(lambda: not is_running(int(printed)))


def is_running(process: int) -> bool:
    """An ended process may stay a zombie."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_part_that_could_end_too_late_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--smoke", "--out", str(tmp_path), "--only", "prepare", "--seconds", "5"]) == 1
    assert "prepare: may take" in capsys.readouterr().err
    assert not (tmp_path / "smoke" / "prepare.json").exists()


def test_wheels_are_pinned_by_the_lock_file() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text().splitlines()
    assert [wheel for wheel in list_wheels() if wheel not in lock] == ["torchao==0.18.0"]


@pytest.mark.slow
def test_all_parts_start_on_a_cpu(tmp_path: Path) -> None:
    command = ["benchmarks/gpu.sh", "--smoke", "--out", str(tmp_path), "--seconds", "1700"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    out = tmp_path / "smoke"
    records = {path.stem: json.loads(path.read_text())["code"] for path in out.glob("*.json")}
    logs = {name: (out / f"{name}.log").read_text()[-500:] for name, code in records.items() if code}
    assert logs == {}
    assert done.returncode == 0, done.stderr
    assert set(records) == {part.name for part in list_parts(tmp_path)}
