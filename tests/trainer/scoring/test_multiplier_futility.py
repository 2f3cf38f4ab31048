"""Which runs stop early, on recorded curves and in a simulation of runs that change between looks as those did.

The tables of benchmarks/results/early-stops.md: `python -m tests.trainer.scoring.test_multiplier_futility`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from trainer.scoring.multiplier import Ladder, futility
from trainer.scoring.multiplier.futility import ENOUGH, LEVEL, LOOKS, DevLoss

RECORDED = Path(__file__).parents[3] / "benchmarks" / "results" / "early-stops.json"
LADDERS, RUNS = 60, 40


class RecordedRun(NamedTuple):
    name: str
    seed: int
    same_recipe: bool
    ends_at: float  # its multiplier
    distances: dict[float, float]  # how far it was behind at each look, in ln of compute; at 1: at its end
    stops_at: float | None


@lru_cache
def load_records() -> tuple[Ladder, tuple[dict[str, Any], ...]]:
    content = json.loads(RECORDED.read_text())
    ends = np.array([run["dev"][-1] for run in content["runs"] if run["name"] == "gpt"])
    return Ladder.fit(ends[:, 0], ends[:, 1], content["full"]), tuple(content["runs"])


@lru_cache
def replay_records() -> tuple[RecordedRun, ...]:
    """Apply the rule to the recorded runs, each beside the ladder run of its seed."""
    ladder, runs = load_records()
    whole = {(run["name"], run["seed"]): run for run in runs if run["part"] == 1}
    found = []
    for (name, seed), run in whole.items():
        if name == "gpt":
            continue
        points = [[DevLoss(*point) for point in each["dev"]] for each in (run, whole["gpt", seed])]
        own, twin = (futility.select_looks(each, ladder.full) for each in points)
        looks = {
            at: futility.compare_at_look(ladder, at, own[at], twin[at], same_recipe=run["same_recipe"]) for at in LOOKS
        }
        distances = {at: -np.log(1 - look.behind) for at, look in looks.items() if look}
        end, last = (np.array(each[-1].bits_per_byte) for each in points)
        distances[1] = float((last - end) / ladder.slope_at(np.zeros(())))
        stops_at = next((at for at, look in looks.items() if look and look.is_futile), None)
        ends_at = float(np.exp(-distances[1]))
        found.append(RecordedRun(name, seed, run["same_recipe"], ends_at, distances, stops_at))
    return tuple(found)


def test_recorded_runs_that_end_above_stop_at_no_look() -> None:
    records = replay_records()
    assert not [run for run in records if run.stops_at and run.ends_at >= ENOUGH]
    assert {run.name for run in records if run.stops_at} >= {"nanogpt"}


def test_recorded_late_bloomers_come_back_by_less_than_their_bound() -> None:
    late = [run for run in replay_records() if not run.same_recipe and run.distances[1 / 2] - run.distances[1] > 0.3]
    assert late, "the sweeps have curves that cross late"
    assert all(run.stops_at is None for run in late)
    back = {at: max(run.distances[at] - run.distances[1] for run in replay_records()) for at in LOOKS}
    assert all(back[at] < futility.RECOVERY[at] for at in LOOKS)


# --- the simulation ---------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    stopped: float  # share of the runs
    saved: float  # share of their hours
    wrong: float  # share of those that would end at `ENOUGH` or more and stop


def list_changes(late: bool) -> np.ndarray:
    """Return how much distances changed from each look to the end in the recorded runs.

    Of late bloomers: those with another recipe that came back between half the budget and the end.
    """
    runs = [run for run in replay_records() if run.same_recipe != late]
    changes = np.array([[run.distances[at] - run.distances[1] for at in LOOKS] for run in runs])
    return changes[changes[:, -1] > 0] if late else changes


def simulate(late: bool, multipliers: tuple[float, float], precision: float = 1.0, seed: int = 1) -> Outcome:
    """Simulate runs that end at multipliers between these two.

    A run's distance from its ladder run at a look is that of its end and a change: a recorded one, by 0.5 to 1.25 of
    its size, in either direction if its recipe is the baseline's, and noise as of two seeds, of which the looks share
    half. `precision`: of the track, relative to the recorded one: how much smaller its noise is.
    """
    rng = np.random.default_rng(seed)
    recorded, runs = load_records()
    changes = list_changes(late)
    ends = np.array([run["dev"][-1] for run in runs if run["name"] == "gpt"])
    sigma = float(recorded.sigma) / precision
    fitted = recorded.loss_at(np.log(ends[:, 0] / recorded.full))
    noise = np.sqrt(2) * sigma / abs(float(recorded.slope_at(np.zeros(()))))
    at_looks = []
    for _ in range(LADDERS):
        ladder = Ladder.fit(ends[:, 0], fitted + sigma * rng.normal(size=len(ends)), recorded.full)
        for log_multiplier in rng.uniform(np.log(multipliers[0]), np.log(multipliers[1]), size=RUNS):
            change = changes[rng.integers(len(changes))] * rng.uniform(0.5, 1.25)
            change = change if late else change * rng.choice([-1, 1])
            change = change + noise * (rng.normal() + rng.normal(size=len(LOOKS))) / 2
            stops_at = 1.0
            for at, distance in zip(LOOKS, change - log_multiplier, strict=True):
                twin = DevLoss(at * recorded.full, 3.0)
                slope = float(recorded.slope_at(np.log(at)))
                own = DevLoss(twin.compute, twin.bits_per_byte - slope * distance)
                look = futility.compare_at_look(ladder, at, own, twin, same_recipe=not late)
                if look and look.is_futile:
                    stops_at = at
                    break
            at_looks.append((stops_at, log_multiplier))
    stops, logs = np.array(at_looks).T
    is_above = logs >= np.log(ENOUGH)
    wrong = float(np.mean(stops[is_above] < 1)) if is_above.any() else 0.0
    return Outcome(float(np.mean(stops < 1)), float(np.mean(1 - stops)), wrong)


@pytest.mark.parametrize("precision", [1.0, 5.0])
@pytest.mark.parametrize("late", [False, True])
def test_at_most_one_of_a_hundred_runs_that_would_end_above_stops(late: bool, precision: float) -> None:
    assert simulate(late, (ENOUGH, 1.3), precision).wrong <= LEVEL
    assert simulate(late, (ENOUGH, ENOUGH * 1.0001), precision, seed=2).wrong <= LEVEL, "the closest ones"


def test_runs_far_behind_stop_and_save_most_of_their_hours() -> None:
    far = simulate(False, (0.5, 0.9), precision=5.0)
    assert far.stopped > 0.8
    assert far.saved > 0.6


def test_runs_without_a_noise_or_a_slope_are_not_judged() -> None:
    compute, loss = np.array([0.25, 0.5, 1.0]), np.array([3.0, 2.8, 2.6])
    point = DevLoss(0.25, 3.0), DevLoss(0.25, 2.9)
    assert futility.compare_at_look(Ladder.fit(compute, loss, 1.0), 1 / 4, *point, same_recipe=True) is None
    rising = Ladder.fit(np.repeat(compute, 2), np.repeat(loss[::-1], 2) + [0, 0.01] * 3, 1.0)
    assert futility.compare_at_look(rising, 1 / 4, *point, same_recipe=True) is None
    early = DevLoss(0.125, 3.0), DevLoss(0.125, 2.9)
    falling = Ladder.fit(np.repeat(compute, 2), np.repeat(loss, 2) + [0, 0.01] * 3, 1.0)
    assert futility.compare_at_look(falling, 1 / 4, *point, same_recipe=True) is not None
    assert futility.compare_at_look(falling, 1 / 8, *early, same_recipe=True) is None, "below its smallest rung"


def test_look_is_the_first_evaluation_at_it_and_none_far_after() -> None:
    points = [DevLoss(compute, 3.0 - compute) for compute in (0.0, 0.126, 0.2, 0.25, 0.26, 0.6)]
    assert {at: point.compute for at, point in futility.select_looks(points, 1.0).items()} == {
        1 / 8: 0.126,
        1 / 4: 0.25,
    }


if __name__ == "__main__":
    for run in replay_records():
        cells = " | ".join(f"{100 * (1 - np.exp(-run.distances[at])):.1f}" for at in (*LOOKS, 1))
        print(f"| {run.name}, {run.seed} | {'' if run.same_recipe else 'own'} | {cells} | {run.stops_at or ''} |")  # noqa: T201
    ranges = ((1.02, 1.0201), (1.02, 1.3), (0.95, 1.02), (0.8, 0.95), (0.5, 0.8), (0.05, 0.5))
    for case in product((False, True), ranges, (1.0, 5.0)):
        print(*case, simulate(*case), sep=" | ")  # noqa: T201
