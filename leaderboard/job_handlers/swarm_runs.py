"""A swarm's run on the site: seats are kept ready while it goes on, and what its coordinator tells becomes rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from django.db.models import F
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leaderboard import runs
from leaderboard.models import Run, Seat, Swarm, SwarmEvent
from leaderboard.sanitize import MAX_INTEGER, plain_text
from scheduler import transitions
from scheduler.matching import format_swarm_track
from scheduler.models import Job
from trainer import protocol
from trainer.swarm.credentials import make_credential

logger = logging.getLogger(__name__)

AHEAD = 3
"""Seats in the queue while more machines are wanted: so many can come at the same moment."""
LEAVES_WITHIN = 60.0
"""Seconds after which a machine that is wanted elsewhere has left its seat: it does so between two steps."""
MAX_EVENTS = 200_000
"""Of a run; what comes after is not kept."""

Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, le=1e40)]
Peer = Annotated[str, Field(max_length=16)]


class SwarmReport(BaseModel):
    """A row of kind "swarm" (`trainer.swarm.metrics_reporter`)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    what: Literal["address", "start", "join", "leave", "ban", "move", "step", "checkpoint", "rollback", "end"]
    step: Whole
    time: Annotated[float, Field(gt=0, lt=1e11)]
    peer: Peer = ""
    label: str = Field(default="", max_length=60)
    stage: Annotated[int, Field(ge=0, lt=64)] | None = None
    why: str = ""
    addresses: tuple[protocol.PeerAddress, ...] = Field(default=(), max_length=16)
    lasting: bool | None = None
    source: Whole | None = None
    since: Whole | None = None
    stages: tuple[Whole, ...] | None = Field(default=None, max_length=64)
    loss: Amount | None = None
    seconds: Amount | None = None
    tokens_per_second: Amount | None = None
    held: dict[Annotated[str, Field(max_length=2)], dict[Peer, Whole]] | None = None
    bytes_in: Whole | None = None
    bytes_out: Whole | None = None


DATA = ("lasting", "source", "since", "stages", "loss", "seconds", "tokens_per_second", "held", "bytes_in", "bytes_out")


class SeatReport(BaseModel):
    """A row of kind "seat", by the volunteer's own count."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tokens_per_second: Amount | None = None
    bytes_in: Whole = 0
    bytes_out: Whole = 0


def get_swarm(run: Run) -> Swarm:
    """Return the run's swarm; the first who asks makes it."""
    return Swarm.objects.select_related("run__track", "run__entry", "run__job").get_or_create(run=run)[0]


def build_swarm_order(run: Run, resume: protocol.Checkpoint | None) -> protocol.SwarmOrder:
    swarm = get_swarm(run)
    size = swarm.size
    return protocol.SwarmOrder(
        run=run.pk,
        dataset=run.season.dataset(),
        config=runs.get_configuration(run),
        stages=size["stages"],
        minimum=size["minimum"],
        patience=size["patience"],
        secret=swarm.secret,
        resume=resume,
    )


def build_seat_order(seat: Seat) -> protocol.WorkerOrder:
    swarm, run = seat.swarm, seat.swarm.run
    return protocol.WorkerOrder(
        run=run.pk,
        title=f"{run.entry.title} (run {run.pk}) on {run.track.name}"[:200],
        coordinator=tuple(swarm.addresses),
        label=seat.label,
        credential=make_credential(swarm.secret, seat.label),
    )


# --- seats -----------------------------------------------------------------------------------------------------------


def fill_seats(swarm: Swarm) -> int:
    """Keep some seats in the queue while the run goes on and wants more machines; return how many are new."""
    run = swarm.run
    if not swarm.addresses or run.state != Run.State.TRAINING:
        return 0
    waiting, taken = swarm.seats.waiting().count(), swarm.seats.taken().count()
    lacking = min(AHEAD, swarm.wanted - taken) - waiting
    for _ in range(lacking):
        Seat.objects.create(swarm=swarm, job=Job.objects.create(**build_seat_job(run)))
    if lacking < 0:
        for seat in swarm.seats.waiting().select_related("job").order_by("-pk")[:-lacking]:
            transitions.cancel_job(seat.job, runs.SITE, "As many machines as are wanted have a seat.")
    return max(lacking, 0)


def fill_all_seats() -> int:
    """Do so for every run that goes on. Safe to run at any time."""
    going = Swarm.objects.filter(run__state=Run.State.TRAINING).select_related("run__track", "run__entry", "run__job")
    return sum(fill_seats(swarm) for swarm in going)


def build_seat_job(run: Run) -> dict[str, Any]:
    assert run.job is not None, "a coordinator has told its address"
    limits = run.track.training_limits(run.part)
    return {
        **runs.get_needs(run, limits),
        "kind": "seat",
        "priority": run.job.priority,
        "expected_seconds": run.expected_seconds,
        "checkpoint_seconds": LEAVES_WITHIN,
        "author": run.entry.author,
        "track": format_swarm_track(run.pk),
        "needs_sandbox": False,  # none but our own code runs, and it needs the network
        "preemptible": True,
        "max_attempts": 1,
        "excluded_nodes": list_banned_nodes(run),
        "release": run.job.release,
        "limits": runs.get_swarm_limits(limits).model_dump(),
    }


def list_banned_nodes(run: Run) -> list[int]:
    """Return the nodes that the coordinator has banned for good: what they sent no sound machine would."""
    banned = SwarmEvent.objects.filter(swarm__run=run, what=SwarmEvent.What.BAN, data__lasting=True)
    seats = Seat.objects.filter(swarm__run=run, peer__in=banned.values("peer"), node__isnull=False)
    return sorted(seats.values_list("node", flat=True).distinct())


def cancel_seats(run: Run, reason: str) -> None:
    """Take all seats away: there is no coordinator. Whoever sits is told with the next heartbeat."""
    swarm = get_swarm(run)
    Swarm.objects.filter(pk=swarm.pk).update(addresses=[])
    theirs = Job.objects.filter(seat__swarm=swarm).exclude(state__in=transitions.FINAL_STATES)
    for job in theirs:
        transitions.cancel_job(job, runs.SITE, reason)
    swarm.seats.update(stage=None)


# --- what the coordinator tells --------------------------------------------------------------------------------------


def store_reports(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep what has happened, in order."""
    swarm = get_swarm(run)
    found: list[SwarmReport] = []
    for row in rows:
        try:
            found.append(SwarmReport.model_validate(row))
        except ValidationError:
            logger.warning("Run %s: its coordinator told what could not be used.", run.pk)
    if not found:
        return
    seats = {seat.peer: seat for seat in swarm.seats.exclude(peer="")}
    events = [build_event(swarm, told, seats) for told in found]
    if swarm.events.count() < MAX_EVENTS:
        SwarmEvent.objects.bulk_create(events)
    Seat.objects.bulk_update(seats.values(), ["peer", "stage", "rows"])
    Run.objects.filter(pk=run.pk).update(revision=F("revision") + 1)
    if any(told.lasting for told in found):
        Job.objects.filter(seat__in=swarm.seats.waiting()).update(excluded_nodes=list_banned_nodes(run))
    if any(told.what == "address" for told in found):
        swarm.run.refresh_from_db(fields=["state"])
        fill_seats(swarm)


def build_event(swarm: Swarm, told: SwarmReport, seats: dict[str, Seat]) -> SwarmEvent:
    """Bring the seats up to date, and return what is kept."""
    if told.what in ("address", "end"):  # with its last word the coordinator is gone
        swarm.addresses = list(told.addresses)
        swarm.save(update_fields=["addresses"])
    if told.what == "join" and (seat := find_seat(swarm, told.label)) is not None:
        seat = seats.setdefault(told.peer, seat)
        seat.peer, seat.stage = told.peer, told.stage
    if told.what == "leave" and told.peer in seats:
        seats[told.peer].stage = None
    for peers in (told.held or {}).values():
        for peer, rows in peers.items():
            if peer in seats:
                seats[peer].rows += rows
    return SwarmEvent(
        swarm=swarm,
        at=datetime.fromtimestamp(told.time, UTC),
        what=told.what,
        step=told.step,
        stage=told.stage,
        peer=told.peer,
        name=seats[told.peer].name if told.peer in seats else "",
        why=plain_text(told.why, 200),
        data={name: value for name in DATA if (value := getattr(told, name)) is not None},
    )


def find_seat(swarm: Swarm, label: str) -> Seat | None:
    word, _, number = label.partition("-")
    if word != "seat" or not number.isdecimal() or len(number) > 18:
        return None
    return swarm.seats.filter(job=int(number)).first()


def store_seat_report(seat: Seat, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep the volunteer's last word on its seat."""
    for row in reversed(rows):
        try:
            told = SeatReport.model_validate(row)
        except ValidationError:
            continue
        Seat.objects.filter(pk=seat.pk).update(**told.model_dump())
        return
