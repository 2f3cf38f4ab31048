"""Which stages start, and which have the GPU: functions of the stages alone, so that tests can play calls with them.

Stages compile at once. One starts only if it can end in time and if the GPU's memory holds it beside the others: what
all hold while they wait, and what the one whose turn it is needs more. So none waits for memory, and turns go by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

MAX_PROCESSES = 9  # stages that compile or wait for their turn at once, on 16 cores
MAX_WAIT_SECONDS = 30  # that a stage of more value may have to wait for one of less


@dataclass(frozen=True)
class Stage:
    name: str
    compile_seconds: float  # of all that it does before its turn
    turn_seconds: float
    waiting_gib: float  # of the GPU's memory before its turn
    peak_gib: float  # in its turn
    work: Callable[[], None]
    expected: str
    after: tuple[str, ...] = ("dataset",)  # stages that must have ended before this one starts
    shares_gpu: bool = False  # compares results: others that do may run at once
    product: str = ""  # what it leaves below the state's folder for the stages after it

    @property
    def seconds(self) -> float:
        return self.compile_seconds + self.turn_seconds


def choose_starts(
    pending: Sequence[Stage], live: Collection[Stage], ended: Collection[str], seconds_left: float, gib: float
) -> list[Stage]:
    """Return the stages to start, by their value, which is their order. Those that share the GPU start last of those
    of more value: they would only wait."""
    chosen: list[Stage] = []
    is_waiting = False
    for stage in pending:
        if stage.seconds > seconds_left or count_gib([stage]) > gib or (stage.shares_gpu and is_waiting):
            continue
        together = [*live, *chosen, stage]
        if set(ended).issuperset(stage.after) and len(together) <= MAX_PROCESSES and count_gib(together) <= gib:
            chosen.append(stage)
        else:
            is_waiting = True
    return chosen


def expect_ready(stage: Stage, seconds: float) -> float:
    """Return the seconds until a stage that started so many seconds ago and compiles yet is expected to be ready: if it
    is late, as many as it is late."""
    return max(1.0, abs(stage.compile_seconds - seconds))


def count_gib(stages: Collection[Stage]) -> float:
    """Return the most memory that these hold together."""
    timed = max((each.peak_gib - each.waiting_gib for each in stages if not each.shares_gpu), default=0)
    sharing = sum(each.peak_gib - each.waiting_gib for each in stages if each.shares_gpu)
    return sum(each.waiting_gib for each in stages) + max(timed, sharing)


def choose_turns(
    live: Sequence[Stage], holders: Collection[str], seconds_to_ready: Mapping[str, float], seconds_left: float
) -> list[Stage]:
    """Return the stages that get the GPU now. `live`: by value. `seconds_to_ready`: 0 of those that wait for a turn,
    of others until they are expected to; without `holders`, who have theirs.

    A timed stage has the GPU alone. No turn begins for which a stage of more value has to wait for long.
    """
    waiting = []
    for number, stage in enumerate(live):
        earlier = [seconds_to_ready.get(each.name, 0.0) for each in live[:number] if not each.shares_gpu]
        is_short = stage.turn_seconds <= min(earlier, default=math.inf) + MAX_WAIT_SECONDS
        if seconds_to_ready.get(stage.name) == 0 and is_short:
            waiting.append(stage)
    waiting = [stage for stage in waiting if stage.turn_seconds <= seconds_left] or waiting
    if not waiting or any(not each.shares_gpu for each in live if each.name in holders):
        return []
    if waiting[0].shares_gpu:
        return [stage for stage in waiting if stage.shares_gpu]
    return [] if holders else waiting[:1]
