"""A swarm run of two stages for the tests of its page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from leaderboard.models import Entry, Run, Season, Seat, Swarm, SwarmEvent, Track
from scheduler import storage
from scheduler.models import Job

BEGAN = datetime(2026, 11, 21, 19, 0, tzinfo=UTC)
NAMES = ("cellar", "attic-3090", "ada's laptop", "kiosk", "library-2", "greenhouse")
STEPS = 60


def create_swarm(began: datetime = BEGAN) -> Swarm:
    """Create a run at its sixtieth step: six machines came, one left, one was banned."""
    season = Season.objects.create(
        name="Season of swarms", corpus="fineweb-edu", tokenizer="bpe:512", dataset_hash="d" * 64
    )
    track = Track.objects.create(
        slug="together",
        name="Together",
        season=season,
        budget="200steps",
        expected_seconds=4000,
        kind="swarm",
        swarm={"stages": 2, "workers": 3},
        is_default=True,
        is_traced=False,
    )
    entry = Entry.objects.create(
        title="Everybody's GPT",
        repository="https://example.org/r",
        sha="a" * 40,
        architecture="gpt",
        track=track,
        kind=Entry.Kind.MAIN,
        state=Entry.State.APPROVED,
    )
    run = Run.objects.create(
        entry=entry,
        track=track,
        season=season,
        seed=1,
        budget="200steps",
        state=Run.State.TRAINING,
        step=STEPS,
        fraction=STEPS / 200,
        loss=4.1,
        seconds=1200,
    )
    swarm = Swarm.objects.create(run=run, addresses=["/ip4/127.0.0.1/tcp/7000/p2p/x"])
    create_events(swarm, began)
    return swarm


def create_events(swarm: Swarm, began: datetime) -> None:
    seats: dict[str, int] = {}
    record_event(swarm, "start", 0, began=began)
    for number, name in enumerate(NAMES):
        job = Job.objects.create(kind="seat", state=Job.State.LEASED, release=storage.store_bytes(b"release"))
        sums = {"rows": 900 - 120 * number, "bytes_in": 3 * 10**8, "bytes_out": 2 * 10**8}
        stage = None if name == "kiosk" else number % 2
        Seat.objects.create(swarm=swarm, job=job, name=name, peer=name[:8], stage=stage, created_at=began, **sums)
    for step in range(STEPS):
        if step % 6 == 0 and step < 45 and len(seats) < len(NAMES):
            name = NAMES[len(seats)]
            seats[name] = len(seats) % 2
            record_event(swarm, "join", step, name, began, stage=seats[name])
        if step == 45:
            stage = seats.pop("kiosk")
            record_event(swarm, "leave", step, "kiosk", began, stage=stage, why="no ledger: lost, the connection broke")
        loss = {"loss": 4 + 6 / (step + 2), "seconds": 20, "tokens_per_second": min(900.0 * len(seats), 4600)}
        record_event(swarm, "step", step + 1, began=began, data={**loss, "held": count_rows(seats)})
    record_event(swarm, "checkpoint", STEPS, began=began)
    record_event(swarm, "ban", STEPS, "library-2", began, why="run took longer than 30.0 s")


def record_event(
    swarm: Swarm, what: str, step: int, name: str = "", began: datetime = BEGAN, **more: Any
) -> SwarmEvent:
    at = began + timedelta(seconds=20 * step)
    return SwarmEvent.objects.create(swarm=swarm, what=what, step=step, at=at, name=name, peer=name[:8], **more)


def count_rows(seats: dict[str, int]) -> dict[str, dict[str, int]]:
    """Return four rows for each machine, by stage."""
    return {str(stage): {name[:8]: 4 for name, at in seats.items() if at == stage} for stage in range(2)}
