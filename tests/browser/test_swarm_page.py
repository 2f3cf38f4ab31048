"""A swarm's page in a browser: machines come and go as dots, and the whole run is played again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from leaderboard.models import Entry, Run, Season, Seat, Swarm, SwarmEvent, Track
from scheduler import storage
from scheduler.models import Job

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

BEGAN = datetime(2026, 11, 21, 19, 0, tzinfo=UTC)
NAMES = ("cellar", "attic-3090", "ada's laptop", "kiosk", "library-2", "greenhouse")
STEPS = 60


def event(swarm: Swarm, what: str, step: int, name: str = "", **more: Any) -> SwarmEvent:
    at = BEGAN + timedelta(seconds=20 * step)
    return SwarmEvent.objects.create(swarm=swarm, what=what, step=step, at=at, name=name, peer=name[:8], **more)


def held(seats: dict[str, int]) -> dict[str, dict[str, int]]:
    return {str(stage): {n[:8]: 4 for n, at in seats.items() if at == stage} for stage in range(2)}


def scene() -> Swarm:
    """A run of two stages at its sixtieth step: six machines came, one left, one was banned, one moved."""
    season = Season.objects.create(name="Season 0", corpus="fineweb-edu", tokenizer="bpe:512", dataset_hash="d" * 64)
    sizes = {"stages": 2, "workers": 3}
    told = {
        "budget": "200steps",
        "expected_seconds": 4000,
        "kind": "swarm",
        "swarm": sizes,
        "is_default": True,
        "is_traced": False,
    }
    track = Track.objects.create(slug="together", name="Together", season=season, **told)
    made = {"architecture": "gpt", "track": track, "kind": Entry.Kind.MAIN, "state": Entry.State.APPROVED}
    entry = Entry.objects.create(title="Everybody's GPT", repository="https://example.org/r", sha="a" * 40, **made)
    progress = {"state": Run.State.TRAINING, "step": STEPS, "fraction": STEPS / 200, "loss": 4.1, "seconds": 1200}
    run = Run.objects.create(entry=entry, track=track, season=season, seed=1, budget="200steps", **progress)
    swarm = Swarm.objects.create(run=run, addresses=["/ip4/127.0.0.1/tcp/7000/p2p/x"])
    happen(swarm)
    return swarm


def happen(swarm: Swarm) -> None:
    seats: dict[str, int] = {}
    event(swarm, "start", 0)
    for number, name in enumerate(NAMES):
        job = Job.objects.create(kind="seat", state=Job.State.LEASED, release=storage.store_bytes(b"release"))
        sums = {"rows": 900 - 120 * number, "bytes_in": 3 * 10**8, "bytes_out": 2 * 10**8}
        stage = None if name == "kiosk" else number % 2
        Seat.objects.create(swarm=swarm, job=job, name=name, peer=name[:8], stage=stage, **sums)
    for step in range(STEPS):
        if step % 6 == 0 and len(seats) < len(NAMES):
            name = NAMES[len(seats)]
            seats[name] = len(seats) % 2
            event(swarm, "join", step, name, stage=seats[name])
        if step == 45:
            event(swarm, "leave", step, "kiosk", stage=seats.pop("kiosk"), why="no ledger: lost, the connection broke")
            break
        loss = {"loss": 4 + 6 / (step + 2), "seconds": 20, "tokens_per_second": 900.0 * len(seats)}
        event(swarm, "step", step + 1, data={**loss, "held": held(seats)})
    for step in range(45, STEPS):
        loss = {"loss": 4 + 6 / (step + 2), "seconds": 20, "tokens_per_second": 4600.0}
        event(swarm, "step", step + 1, data={**loss, "held": held(seats)})
    event(swarm, "checkpoint", STEPS)
    event(swarm, "ban", STEPS, "library-2", why="run took longer than 30.0 s")


def test_machines_come_as_dots_and_the_run_is_played_again(open_page: Callable[..., Page]) -> None:
    swarm = scene()
    page = open_page(f"/runs/{swarm.run_id}/swarm/")
    columns = page.locator(".swarm-stage")
    expect(columns).to_have_count(2)
    expect(columns.first).to_contain_text("cellar")
    expect(page.locator(".swarm-machine")).to_have_count(5)
    expect(page.locator(".swarm-machine.is-banned")).to_contain_text("library-2")
    expect(page.locator("#clock")).to_contain_text("step 60")

    page.locator("#moment").fill("150")
    expect(page.locator(".swarm-machine")).to_have_count(2)
    expect(page.locator("#clock")).not_to_contain_text("step 60")
    page.locator("#now").click()
    expect(page.locator(".swarm-machine")).to_have_count(5)

    event(swarm, "join", STEPS, "newcomer", stage=1)
    expect(columns.nth(1)).to_contain_text("newcomer", timeout=8000)
    expect(page.locator("#happened")).to_contain_text("newcomer took a seat at stage 2")


def test_without_script_it_says_the_same(open_page: Callable[..., Page]) -> None:
    swarm = scene()
    page = open_page(f"/runs/{swarm.run_id}/swarm/", java_script_enabled=False)
    expect(page.locator(".swarm-machine")).to_have_count(5)
    expect(page.locator("#replay")).to_be_hidden()
    expect(page.locator("#people")).to_contain_text("attic-3090")
