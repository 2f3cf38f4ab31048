"""The schedule of `python -m benchmarks.gpu`, played with the seconds of each stage on an H100 and an H200."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest

from benchmarks.gpu.schedule import MAX_WAIT_SECONDS, Stage, choose_starts, choose_turns, count_gib
from benchmarks.gpu.stages import STAGES

FIRST_CALL, SECOND_CALL = 524, 294  # of 530 and 300 seconds, less the summary
H100, H200 = 78.6, 138.8  # GiB
SHARED = [stage.name for stage in STAGES if stage.shares_gpu]
TIMED = [stage.name for stage in STAGES[: [stage.name for stage in STAGES].index(SHARED[0])]]
Factor = Callable[[str], float]  # of a stage's expected seconds


def play(
    gib: float, seconds: int, done: Collection[str] = (), compiling: Factor = lambda _: 1, turn: Factor = lambda _: 1
) -> tuple[list[str], dict[str, int]]:
    """Return the stages that end within so many seconds, in their order, and how long each waited for its turn."""
    pending = [stage for stage in STAGES if stage.name not in done]
    ended, waits = [stage.name for stage in STAGES if stage.name in done], {}
    live: dict[str, Stage] = {}
    ready: dict[str, float] = {}
    turns: dict[str, int] = {}
    for now in range(seconds):
        for name in [name for name in turns if now - turns[name] >= live[name].turn_seconds * turn(name)]:
            del live[name], turns[name]
            ended.append(name)
        for stage in choose_starts(pending, live.values(), ended, seconds - now, gib):
            pending.remove(stage)
            live[stage.name] = stage
            ready[stage.name] = now + stage.compile_seconds * (5 / 60 if stage.name == "dataset" else 1)
            ready[stage.name] = now + (ready[stage.name] - now) * compiling(stage.name)
        by_value = [stage for stage in STAGES if stage.name in live]
        assert count_gib(by_value) <= gib
        waiting = {name: max(0.0, ready[name] - now) for name in live if name not in turns}
        for stage in choose_turns(by_value, turns.keys(), waiting, seconds - now):
            turns[stage.name], waits[stage.name] = now, now - int(ready[stage.name])
        timed = [name for name in turns if not live[name].shares_gpu]
        assert not timed or len(turns) == 1
    return ended[len(done) :], waits


@pytest.mark.parametrize("gib", [H100, H200])
def test_two_calls_run_all_stages_but_the_longest_and_most_valuable_first(gib: float) -> None:
    first, waits = play(gib, FIRST_CALL)
    assert set(first) >= set(TIMED)
    assert max(waits[name] for name in ("d24", "nanochat-d24", "d24-fp8")) <= MAX_WAIT_SECONDS
    second, _ = play(gib, SECOND_CALL, done=first)
    assert {stage.name for stage in STAGES} - {*first, *second} == {"d20-fp8"}


@pytest.mark.parametrize("gib", [H100, H200])
def test_slower_card_and_compiler_leave_the_least_and_the_longest_stages(gib: float) -> None:
    def slow(name: str) -> float:
        return 1.15

    first, _ = play(gib, FIRST_CALL, compiling=slow, turn=slow)
    assert set(TIMED) - set(first) <= {"d24-fp8"}
    second, _ = play(gib, SECOND_CALL, done=first, compiling=slow, turn=slow)
    assert set(SHARED) <= {*first, *second}


@pytest.mark.parametrize("seed", range(10))
def test_no_stage_waits_forever_whatever_others_take(seed: int) -> None:
    rng = random.Random(seed)
    factors = {stage.name: rng.choice([0.3, 0.6, 1.0, 1.5, 2.5]) for stage in STAGES}
    ended, _ = play(H100, 5000, compiling=factors.__getitem__, turn=factors.__getitem__)
    assert set(ended) == {stage.name for stage in STAGES}
