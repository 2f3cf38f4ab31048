"""The schedule of `python -m benchmarks.gpu`, played with the seconds of each stage on an H100 and an H200."""

from __future__ import annotations

import inspect
import random
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import runs
from benchmarks.gpu.schedule import MAX_WAIT_SECONDS, Stage, choose_starts, choose_turns, count_gib, expect_ready
from benchmarks.gpu.stages import STAGES
from tests.support.paths import REPOSITORY

FIRST_CALL, SECOND_CALL, WARM_CALL = 534, 150, 224  # less the summary
H100, H200 = 78.6, 138.8  # GiB
SHARED = [stage.name for stage in STAGES if stage.shares_gpu]
TIMED = [stage.name for stage in STAGES[: [stage.name for stage in STAGES].index(SHARED[0])]]
ONCE = dict.fromkeys((stage.name for stage in STAGES), 1.0)


def play(
    gib: float, seconds: int, done: Collection[str] = (), factors: dict[str, float] = ONCE
) -> tuple[list[str], dict[str, float], set[str]]:
    """Return the stages that end, how long each waited for its turn, and those that are killed. `factors`: of its
    expected seconds, by which it is scheduled."""
    pending = [stage for stage in STAGES if stage.name not in done]
    ended, live = [stage.name for stage in STAGES if stage.name in done], dict[str, Stage]()
    started, ready, turns, waits = (dict[str, float]() for _ in range(4))
    killed = set[str]()
    for now in range(seconds):
        for name, stage in list(live.items()):
            turn = now - turns.get(name, now)
            work = min(now, ready[name]) - started[name] + turn
            is_late = work > gpu.LIMIT_FACTOR * stage.seconds + gpu.LIMIT_EXTRA
            is_late |= turn > gpu.TURN_FACTOR * stage.turn_seconds + gpu.TURN_EXTRA
            if is_late or (name in turns and turn >= stage.turn_seconds * factors[name]):
                del live[name]
                turns.pop(name, None)
                (killed.add if is_late else ended.append)(name)
        for stage in choose_starts(pending, live.values(), {*ended, *killed}, seconds - now, gib):
            pending.remove(stage)
            live[stage.name], started[stage.name] = stage, now
            compiling = 5 if stage.name == "dataset" else stage.compile_seconds  # it was carried along
            ready[stage.name] = now + compiling * factors[stage.name]
        by_value = [stage for stage in STAGES if stage.name in live]
        assert count_gib(by_value) <= gib
        waiting = {
            name: 0.0 if ready[name] <= now else expect_ready(stage, now - started[name])
            for name, stage in live.items()
            if name not in turns
        }
        for stage in choose_turns(by_value, turns.keys(), waiting, seconds - now):
            turns[stage.name], waits[stage.name] = now, now - ready[stage.name]
        timed = [name for name in turns if not live[name].shares_gpu]
        assert not timed or len(turns) == 1
    return ended[len(done) :], waits, killed


@pytest.mark.parametrize("gib", [H100, H200])
def test_two_calls_run_the_most_valuable_stages_first(gib: float) -> None:
    first, waits, _ = play(gib, FIRST_CALL)
    assert set(first) >= set(TIMED)
    assert max(waits[name] for name in ("d24-fp8", "d24", "nanochat-d24")) <= MAX_WAIT_SECONDS
    least = {"two-processes", "d20", "nanochat-d20", "torch-d20", "d20-fp8"}
    assert ONCE.keys() - {*first, *play(gib, WARM_CALL, first)[0]} <= least
    assert ONCE.keys() - {*first, *play(gib, SECOND_CALL, first)[0]} <= {*least, *SHARED}


@pytest.mark.parametrize("gib", [H100, H200])
def test_slower_card_and_compiler_leave_the_least_and_the_longest_stages(gib: float) -> None:
    slow = dict.fromkeys((stage.name for stage in STAGES), 1.15)
    first, _, killed = play(gib, FIRST_CALL, (), slow)
    assert not killed
    assert set(TIMED) - set(first) <= {"d24-fp8", "d12-memory"}
    assert {"resume"} <= {*first, *play(gib, WARM_CALL, first, slow)[0]}


@pytest.mark.parametrize("seed", range(10))
def test_no_stage_waits_forever_whatever_others_take(seed: int) -> None:
    rng = random.Random(seed)
    factors = {name: rng.choice([0.3, 0.6, 1.0, 1.5, 2.5]) for name in ONCE}
    ended, _, killed = play(H100, 5000, (), factors)
    assert {*ended, *killed} == ONCE.keys()
    assert all(factors[name] > 1.5 for name in killed)


def test_stage_named_by_only_starts_whatever_its_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []
    monkeypatch.setattr(gpu.Driver, "start_process", lambda _, name: started.append(name))
    (tmp_path / "dataset").mkdir()
    gpu.Driver(tmp_path, STAGES, 400, False, ["d24-fp8"]).start()
    assert started == ["d24-fp8"]
    gpu.Driver(tmp_path, STAGES, 7, False).start()
    assert started == ["d24-fp8"]
    assert "not started: dataset, card, tests, d24-fp8" in capsys.readouterr().out


def test_killed_stage_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    class Hanging:
        pid, returncode = 1, None

        def poll(self) -> None:
            return None

        def wait(self, timeout: float | None = None) -> None:
            waits.append(timeout)
            raise subprocess.TimeoutExpired("stage", timeout or 0)

    monkeypatch.setattr(gpu.os, "killpg", lambda *_: None)
    driver = gpu.Driver(tmp_path, STAGES, 7, False)
    driver.live["card"] = gpu.Process(STAGES[1], Hanging(), 0.0)
    driver.finish("card", 124)
    assert waits == [5]
    assert [row["code"] for row in gpu.read_results(tmp_path)] == [124]


def test_empty_library_of_a_killed_compilation_is_removed_before_the_next_call(tmp_path: Path) -> None:
    for name, text in (("empty.so", ""), ("whole.so", "code")):
        (tmp_path / "cache/inductor").mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache/inductor" / name).write_text(text)
    gpu.Driver(tmp_path, STAGES, 7, False)
    assert [path.name for path in tmp_path.rglob("*.so")] == ["whole.so"]


def test_missing_parts_are_named_before_stages_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(gpu.Driver, "run", lambda _: None)
    gpu.main(["--only", "card"], tmp_path / "gpu")
    wanted = "Missing on this machine: gcc, git, bwrap, torchao, bitsandbytes, flash_attn_interface, nanochat."
    assert capsys.readouterr().out.splitlines()[0] == wanted
    (tmp_path / "extra/bubblewrap").mkdir(parents=True)
    assert "bwrap" not in gpu.list_missing()


def test_page_prepares_the_dataset_as_the_stage_does_and_ends_without_it() -> None:
    page = (REPOSITORY / "docs/how-to/gpu.md").read_text()
    stage = inspect.getsource(runs.prepare_dataset)
    for part in ("bpe:32768", "16MiB", "/*.py", "/*/*.py"):
        assert part in page
        assert part in stage
    assert "cp -r extra/dataset benchmarks/out/gpu || exit" in page
    ignored = subprocess.run(["git", "check-ignore", "-q", "extra/dataset"], cwd=REPOSITORY, check=False)
    assert ignored.returncode == 0


def test_wheels_of_the_night_are_apart_from_those_of_the_trainer() -> None:
    trainer, night = (
        {line.split("==")[0] for line in (REPOSITORY / "benchmarks/gpu" / name).read_text().splitlines()}
        for name in ("wheels.txt", "wheels-night.txt")
    )
    assert not trainer & night
    assert "django" in night
    assert {"jsonargparse", "torchao"} <= trainer
