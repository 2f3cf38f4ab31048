"""`python -m benchmarks.gpu`: a failing stage stops no other, a second call does what is left, all start on a CPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import night
from benchmarks.gpu.schedule import Stage
from benchmarks.gpu.stage import SKIPPED, write_line
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.steps import COMPILED_IN_REHEARSALS
from tests.support.paths import REPOSITORY
from trainer.sandbox import get_driver

pytestmark = [pytest.mark.processes, pytest.mark.slow]

WHEELS = [Path("benchmarks/gpu/wheels.txt"), Path("benchmarks/gpu/wheels-night.txt")]


class ScriptedDriver(gpu.Driver):
    """A driver whose stages run a line of Python instead of `benchmarks.gpu`."""

    def __init__(self, folder: Path, scripts: dict[str, str]) -> None:
        self.scripts = scripts
        stages = [
            Stage(name, 20, 1, 0, 0, lambda: None, "", (), shares_gpu=name.startswith("shared")) for name in scripts
        ]
        super().__init__(folder, stages, seconds=120, is_rehearsal=False)

    def start_process(self, name: str) -> subprocess.Popen[bytes]:
        prelude = f"import pathlib, time; folder, name = pathlib.Path({str(self.folder)!r}), {name!r}; "
        turn = "(folder / f'{name}.ready').touch(); "
        turn += "exec('while not (folder / f\"{name}.go\").exists(): time.sleep(.01)'); "
        code = prelude + self.scripts[name].replace("TURN; ", turn)
        return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def list_ends(folder: Path) -> dict[str, int]:
    return {row["stage"]: row["code"] for row in gpu.read_results(folder) if "seconds" in row}


def test_failing_stage_stops_no_other_and_a_second_call_repeats_it_alone(tmp_path: Path) -> None:
    scripts = {"first": "TURN; raise SystemExit(3)", "second": "TURN; "}
    ScriptedDriver(tmp_path, scripts).run()
    assert list_ends(tmp_path) == {"first": 3, "second": 0}
    again = ScriptedDriver(tmp_path, {"first": "TURN; ", "second": "raise SystemExit(4)"})
    assert [stage.name for stage in again.pending] == ["first"]
    again.run()
    assert list_ends(tmp_path) == {"first": 0, "second": 0}


def test_stage_that_exceeds_its_turn_is_killed_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "TURN_EXTRA", 0.0)
    ScriptedDriver(tmp_path, {"first": "TURN; time.sleep(600)", "second": "TURN; "}).run()
    assert list_ends(tmp_path) == {"first": 124, "second": 0}


def run_d12(folder: Path, change: str) -> subprocess.CompletedProcess[str]:
    """Run the stage after a line of Python, in its turn, with a compiler that generates no code."""
    code = f"from benchmarks.gpu import stages, steps; c = steps.compilation; c.BACKEND = 'aot_eager'; {change}; "
    code += "next(stage for stage in stages.STAGES if stage.name == 'd12').work()"
    (folder / "d12.go").touch()
    environment = {**os.environ, "GPU_FOLDER": str(folder), "GPU_REHEARSAL": "1"}
    for stage, command in (("dataset", ["-m", "benchmarks.gpu", "--stage", "dataset"]), ("d12", ["-c", code])):
        own = {**environment, "GPU_STAGE": stage}
        done = subprocess.run([sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, env=own)
    return done


def test_stage_that_cannot_compile_ends_before_its_turn(tmp_path: Path) -> None:
    done = run_d12(tmp_path, "steps.compile_parts = lambda *_: 1 / 0")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert not (tmp_path / "d12.ready").exists()


def test_stage_whose_compiled_gradients_are_refused_says_so_and_is_measured(tmp_path: Path) -> None:
    done = run_d12(tmp_path, "c.GRADIENT_TOLERANCE = c.NOISE_SHARE = -1")
    assert done.returncode == 0, done.stderr
    rows = gpu.read_results(tmp_path)
    assert [row["part"] for row in rows if "failed" in row] == ["gradients"]
    assert "the norm of that of" in next(row["failed"] for row in rows if "failed" in row)
    assert [row["tokens_per_s"] > 0 for row in rows if "tokens_per_s" in row] == [True]


def test_second_call_on_a_fresh_machine_first_makes_what_its_stages_need(tmp_path: Path) -> None:
    """Lines of the first call were copied; dataset and runs were not."""
    for stage in STAGES:
        if stage.name != "score":
            write_line(tmp_path, {"stage": stage.name, "code": 0, "seconds": 1})
    for product, wanted in (("", ["dataset", "train"]), ("runs/train/result.json", ["dataset"]), ("dataset", [])):
        (tmp_path / product).mkdir(parents=True, exist_ok=True)
        for only in ((), ("score",)):
            assert [each.name for each in gpu.list_pending(tmp_path, STAGES, only)] == [*wanted, "score"]
    write_line(tmp_path, {"stage": "score", "code": 0, "seconds": 1})
    assert gpu.list_pending(tmp_path, STAGES) == []


def test_skipped_stage_is_shown_as_skipped_and_is_left_for_another_call(tmp_path: Path) -> None:
    scripts = {"first": f"raise SystemExit({SKIPPED})", "second": "TURN; "}
    driver = ScriptedDriver(tmp_path, scripts)
    stages = list(driver.pending)
    driver.run()
    assert [line.split(" | ")[1] for line in gpu.summarize(tmp_path, stages)] == ["SKIPPED", "done"]
    assert [stage.name for stage in ScriptedDriver(tmp_path, scripts).pending] == ["first"]


def test_rehearsal_without_a_part_of_a_stage_does_not_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # a night needs git
    assert gpu.main(["--rehearse", "--only", "night"], tmp_path / "gpu") == 1
    assert '\nnight | SKIPPED | {"skipped": "git is not installed"}' in capsys.readouterr().out


def test_stages_that_share_the_gpu_run_together_and_never_beside_a_timed_one(tmp_path: Path) -> None:
    until_both = "exec('while len(list(folder.glob(\"*.met\"))) < 2: time.sleep(.01)'); "
    share = "TURN; running = folder / f'{name}.running'; running.touch(); (folder / f'{name}.met').touch(); "
    share += f"{until_both}time.sleep(.3); running.unlink()"
    timed = f"{until_both}TURN; assert not list(folder.glob('*.running'))"  # ready as soon as both share the GPU
    ScriptedDriver(tmp_path, {"shared-a": share, "timed": timed, "shared-b": share, "timed-b": timed}).run()
    assert list_ends(tmp_path) == {"shared-a": 0, "timed": 0, "shared-b": 0, "timed-b": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_call_ends_its_stages_and_has_written_each_line_to_out(number: int, tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from benchmarks.gpu import __main__ as gpu, stage, schedule;"
        " work = lambda: (stage.emit(pid=os.getpid()), time.sleep(600)); gpu.sys.executable = sys.argv[1];"
        " gpu.STAGES = (schedule.Stage('long', 600, 1, 0, 0, work, '', ()),); gpu.main(sys.argv[3:], Path(sys.argv[2]))"
    )
    python = tmp_path / "python"  # runs stages by the same code
    python.write_text(f'#!/bin/sh\nshift 2; exec {sys.executable} -c "$CODE" "$0" {tmp_path}/gpu "$@"\n')
    python.chmod(0o755)
    command = [sys.executable, "-c", code, str(python), str(tmp_path / "gpu"), "--seconds", "900"]
    driver = subprocess.Popen([*command, "--out", str(tmp_path / "out")], env={**os.environ, "CODE": code})
    results = tmp_path / "out/results.jsonl"
    while not (results.exists() and results.read_text()) and driver.poll() is None:
        time.sleep(0.05)
    pid = json.loads(results.read_text())["pid"]
    driver.send_signal(number)
    driver.wait()
    while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.05)  # until the stage has ended
    assert gpu.read_results(tmp_path / "out") == gpu.read_results(tmp_path / "gpu")
    assert number == signal.SIGKILL or list_ends(tmp_path / "out") == {"long": 124}


def read_commands() -> list[str]:
    return re.findall(r"```\n(.*)\n```", (REPOSITORY / "docs/how-to/gpu.md").read_text())


def test_night_finds_the_bubblewrap_that_the_page_says_to_carry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (command,) = (command for command in read_commands() if "bwrap" in command)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/prlimit").symlink_to(shutil.which("prlimit") or "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "bwrap is not installed" in (get_driver("bubblewrap").find_problem() or "")
    night.add_bubblewrap(tmp_path)
    assert get_driver("bubblewrap").find_problem() is None


def test_commands_of_the_page_are_shorter_than_a_device_takes() -> None:
    assert max(map(len, read_commands())) < 2000


def test_wheels_are_pinned_by_the_lock_file_and_have_hashes() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text().lower().replace("_", "-").splitlines()
    lines = [line for path in WHEELS for line in (REPOSITORY / path).read_text().splitlines()]
    wheels = [line for line in lines if not line.startswith("#")]
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}$", wheel) for wheel in wheels)
    names = [wheel.split()[0].lower().replace("_", "-") for wheel in wheels]
    assert [name for name in names if name not in lock] == ["torchao==0.18.0"]


def test_all_stages_start_on_a_cpu(tmp_path: Path) -> None:
    flags = ["--rehearse", "--seconds", "1700", "--out", str(tmp_path / "out")]
    folder = REPOSITORY / "benchmarks/out/gpu-rehearsal"
    (folder / "results.jsonl").unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", *flags]
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}  # stages do not inherit it
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=environment)
    lines = (tmp_path / "out/results.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    codes = {row["stage"]: row["code"] for row in rows if "seconds" in row and "code" in row}
    skipped = {name for name, code in codes.items() if code == SKIPPED}
    assert all(name.startswith("nanochat") for name in skipped)  # its code is no part of the project
    failed = {name: (folder / f"{name}.log").read_text()[-800:] for name in codes.keys() - skipped if codes[name]}
    assert failed == {}
    assert [row for row in rows if "failed" in row] == []
    compiled = {row["stage"]: (row["compiled"] > 0, row["compiled_in_turn"]) for row in rows if "compiled" in row}
    wanted = {*COMPILED_IN_REHEARSALS} - skipped
    assert {name: compiled[name] for name in wanted} == dict.fromkeys(wanted, (True, 0))
    assert codes.keys() == {stage.name for stage in STAGES}
    assert done.returncode == bool(skipped), done.stdout + done.stderr
