"""What one card does in the next months: which nights start, how late, and when the track's ladder is full.

A small model of the queue, fast enough for a page: scores go first, then nights, then the ladder, which yields to them.
`benchmarks/one_card` plays the same months with the site's own schedule, queue and leases; a test compares both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

HOUR, DAY = 3600.0, 86_400.0
DAYS = 90
INTERRUPTION_SECONDS = 2 * HOUR
"""Once a week. Assumed, as the other durations of the card."""
NETWORK = 1e8
"""Bytes per second of a card whose network was not measured."""
START_SECONDS = 300.0
"""From the lease to the first step: download, data, compilation."""
STOP_SECONDS = 105.0
"""From a due night to the written checkpoint of the run that yields: the task, the next heartbeat, the save."""
EVALUATION_SHARE = 0.01
"""Evaluations in addition to the training time that a budget counts."""


@dataclass(frozen=True)
class PlannedRun:
    seconds: float
    """Of training, as its budget counts them."""
    score_seconds: float
    """0: another machine scores it."""


@dataclass(frozen=True)
class CardPlan:
    night: PlannedRun
    ladder: tuple[PlannedRun, ...]
    """Missing runs, in the order in which they are queued."""
    upload_every: float
    """Seconds between two checkpoints that are sent to the site."""
    resume_seconds: float
    """To send or fetch a checkpoint with its optimizer state."""
    final_seconds: float
    """To send the final weights."""
    first_due: float = 0.0
    """Seconds until the first night."""
    pins_baseline: bool = False
    """The first night's `main` becomes the baseline; until then there is no ladder."""


@dataclass(frozen=True)
class Forecast:
    days: int
    nights_due: int
    """Nights on which `main` has moved."""
    nights_started: int
    hours_late_at_most: float
    """Without the time in which the card was away."""
    ladder_full_day: int | None
    """None: not within these days."""
    ladder_hours_left: float
    """Of the runs that are missing at the end."""
    hours_lost: float


@dataclass
class Task:
    kind: str
    """score, night or ladder."""
    seconds: float
    """Of training or scoring, all of it."""
    score_seconds: float = 0.0
    done: float = 0.0
    is_resumed: bool = False


def draw_interruptions(days: int, seed: int = 1) -> Iterator[tuple[float, float]]:
    """Yield one interruption of each week, at a random time."""
    rng = random.Random(seed)
    for week in range(math.ceil(days / 7)):
        begin = week * 7 * DAY + rng.uniform(0, 7 * DAY - INTERRUPTION_SECONDS)
        yield begin, begin + INTERRUPTION_SECONDS


def list_moves(days: int, moves_a_week: int) -> list[int]:
    """Return the days on which `main` moves: the first ones of each week, and the first of all."""
    return [day for day in range(days) if day == 0 or day % 7 < moves_a_week]


class Card:
    """One card on its way through the days."""

    def __init__(self, plan: CardPlan, days: int, moves: Collection[int], away: Sequence[tuple[float, float]]) -> None:
        self.plan, self.days, self.away = plan, days, away
        self.dues = sorted(plan.first_due + day * DAY for day in moves)
        self.due = list(self.dues)
        """Those not yet taken."""
        self.night: Task | None = None
        self.scores: list[Task] = []
        ladder = () if plan.pins_baseline else plan.ladder
        self.ladder = [Task("ladder", run.seconds, run.score_seconds) for run in ladder]
        self.now = 0.0
        self.started, self.late, self.lost = 0, 0.0, 0.0
        self.full_at: float | None = None

    def run(self) -> Forecast:
        horizon = self.days * DAY
        while self.now < horizon:
            if end := next((end for begin, end in self.away if begin <= self.now < end), None):
                self.now = end
            elif task := self.choose_task():
                self.work(task)
            else:
                begins = [begin for begin, _ in self.away if begin > self.now]
                self.now = min([*self.due[:1], *begins[:1], horizon])
        full = self.full_at is not None and self.full_at < horizon
        left = sum(task.seconds - task.done + task.score_seconds for task in self.ladder)
        due = sum(at < horizon for at in self.dues)
        day = math.ceil((self.full_at or 0.0) / DAY) if full else None
        return Forecast(self.days, due, self.started, self.late, day, left / HOUR, self.lost / HOUR)

    def choose_task(self) -> Task | None:
        if self.scores:
            return self.scores[0]
        passed = [due for due in self.due if due <= self.now]
        if self.night is None and passed:
            due = passed[-1]  # the newest: those before it are lost
            self.due = self.due[len(passed) :]
            away = sum(max(min(end, self.now) - max(begin, due), 0.0) for begin, end in self.away)
            self.late = max(self.late, (self.now - due - away) / HOUR)
            if self.started == 0 and self.plan.pins_baseline:
                self.ladder = [Task("ladder", run.seconds, run.score_seconds) for run in self.plan.ladder]
            self.started += 1
            self.night = Task("night", self.plan.night.seconds, self.plan.night.score_seconds)
        return self.night or next(iter(self.ladder), None)

    def work(self, task: Task) -> None:
        """Work on a task until its end, an interruption, or a night that is due."""
        plan, is_score = self.plan, task.kind == "score"
        share = 0.0 if is_score else EVALUATION_SHARE
        first = self.now + (0.0 if is_score else START_SECONDS + plan.resume_seconds * task.is_resumed)
        trained = first + (task.seconds - task.done) * (1 + share)
        end = trained + (0.0 if is_score else plan.final_seconds)
        broken = next((begin for begin, _ in self.away if begin >= self.now), math.inf)
        yields = next((due for due in self.due if due > self.now), math.inf) if task.kind == "ladder" else math.inf
        if yields < min(end, broken):
            saved = yields + STOP_SECONDS
            task.done = min(task.done + max(saved - first, 0.0) / (1 + share), task.seconds)
            task.is_resumed = task.is_resumed or task.done > 0
            self.now = saved + plan.resume_seconds
        elif broken < end:
            worked = max(min(broken, trained) - first, 0.0)
            sent = 0.0 if is_score else worked // plan.upload_every * plan.upload_every
            task.done += sent / (1 + share)
            task.is_resumed = task.is_resumed or task.done > 0
            self.lost += (worked - sent) / (1 + share)
            self.now = broken
        else:
            self.now = end
            self.finish(task)

    def finish(self, task: Task) -> None:
        if task.kind == "score":
            self.scores.remove(task)
        elif task.kind == "night":
            self.night = None
        else:
            self.ladder.remove(task)
        if task.score_seconds:
            self.scores.append(Task("score", task.score_seconds))
        has_ladder = self.plan.ladder and (self.started or not self.plan.pins_baseline)
        if has_ladder and not self.ladder and not self.scores and self.full_at is None:
            self.full_at = self.now


def forecast_card(
    plan: CardPlan, moves: Collection[int], days: int = DAYS, away: Sequence[tuple[float, float]] | None = None
) -> Forecast:
    """Return what the card does. `moves`: days on which `main` moves; `away`: when the card is away."""
    return Card(plan, days, moves, list(draw_interruptions(days)) if away is None else away).run()


def describe_remedies(plan: CardPlan, moves_a_week: int, found: Forecast, days: int = DAYS) -> str:
    """Return what would fill a ladder that the card alone does not fill."""
    moves = list_moves(days, moves_a_week)
    weekly = forecast_card(plan, [day for day in moves if day % 7 != 6], days)
    remedies = [f"a second card for {math.ceil(found.ladder_hours_left):,} hours"]
    if weekly.ladder_full_day:
        remedies.append(f"a night a week for the ladder (full on day {weekly.ladder_full_day})")
    longest = max(run.seconds for run in plan.ladder)
    fewer = forecast_card(replace(plan, ladder=tuple(run for run in plan.ladder if run.seconds < longest)), moves, days)
    if fewer.ladder_full_day:
        remedies.append(f"a ladder without its longest rung (full on day {fewer.ladder_full_day})")
    return " or ".join([", ".join(remedies[:-1]), remedies[-1]] if len(remedies) > 1 else remedies)
