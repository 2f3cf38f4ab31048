"""Swarm runs: jobs of kind `swarm`, the coordinator of a run that many machines train together, and of kind `seat`, the
place of one worker. Seats are queued while the run trains."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from django.db.models import F
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leaderboard import run_jobs
from leaderboard.job_handlers.train import TrainHandler
from leaderboard.models import Run, Seat, Swarm, SwarmEvent
from leaderboard.sanitize import MAX_INTEGER, sanitize_text
from scheduler import transitions
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.matching import format_swarm_track
from scheduler.models import SITE_ACTOR, Job, Lease
from trainer import protocol
from trainer.swarm.credentials import make_credential

# Why a coordinator shuts down all workers; a seat's result may arrive before the coordinator's.
END_REASONS = ("The run is finished.", "The run has been stopped.")
logger = logging.getLogger(__name__)

QUEUED_SEATS = 3  # while the run wants more machines: so many can join at the same time
PREEMPTION_SECONDS = 60.0  # a preempted machine leaves its seat between two steps
MAX_EVENTS = 200_000  # of a run; later ones are not stored

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


# What an event stores of a report in `data`, in addition to its own columns.
EVENT_DATA = {*SwarmReport.model_fields} - {"what", "step", "time", "peer", "label", "stage", "why", "addresses"}


class SeatReport(BaseModel):
    """A row of kind "seat", as the volunteer's machine counts."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tokens_per_second: Amount | None = None
    bytes_in: Whole = 0
    bytes_out: Whole = 0


def get_swarm(run: Run) -> Swarm:
    return Swarm.objects.select_related("run__track", "run__entry", "run__job").get_or_create(run=run)[0]


# --- seats -----------------------------------------------------------------------------------------------------------


def fill_seats(swarm: Swarm) -> int:
    """Keep some seats in the queue while the run trains and wants more machines; return how many are new."""
    run = swarm.run
    if not swarm.addresses or run.state != Run.State.TRAINING:
        return 0
    missing = min(QUEUED_SEATS, swarm.wanted - swarm.seats.taken().count()) - swarm.seats.waiting().count()
    for _ in range(missing):
        Seat.objects.create(swarm=swarm, job=Job.objects.create(**build_seat_job(run)))
    if missing < 0:
        for seat in swarm.seats.waiting().select_related("job").order_by("-pk")[:-missing]:
            transitions.cancel_job(seat.job, SITE_ACTOR, "Enough machines have a seat.")
    return max(missing, 0)


def fill_all_seats() -> int:
    """Fill the seats of every training run. Idempotent."""
    swarms = Swarm.objects.filter(run__state=Run.State.TRAINING).select_related("run__track", "run__entry", "run__job")
    return sum(fill_seats(swarm) for swarm in swarms)


def build_seat_job(run: Run) -> dict[str, Any]:
    assert run.job is not None, "a coordinator has reported its address"
    limits = run.track.training_limits(run.part)
    return {
        **run_jobs.get_needs(run, limits),
        "kind": "seat",
        "priority": run.job.priority,
        "expected_seconds": run.expected_seconds,
        "checkpoint_seconds": PREEMPTION_SECONDS,
        "author": run.entry.author,
        "track": format_swarm_track(run.pk),
        "needs_sandbox": False,  # it runs no entry's code, and it needs the network
        "preemptible": True,
        "max_attempts": 1,
        "excluded_nodes": list_banned_nodes(run),
        "release": run.job.release,
        "limits": run_jobs.get_swarm_limits(limits).model_dump(),
    }


def list_banned_nodes(run: Run) -> list[int]:
    """Return the nodes that the coordinator has banned permanently, for invalid data."""
    banned = SwarmEvent.objects.filter(swarm__run=run, what=SwarmEvent.What.BAN, data__lasting=True)
    seats = Seat.objects.filter(swarm__run=run, peer__in=banned.values("peer"), node__isnull=False)
    return sorted(seats.values_list("node", flat=True).distinct())


def cancel_seats(coordinator: Job, reason: str) -> None:
    """Cancel all seats because there is no coordinator. Workers learn it with the next heartbeat."""
    swarm = get_swarm(Run.objects.get(job=coordinator))
    Swarm.objects.filter(pk=swarm.pk).update(addresses=[])
    for job in Job.objects.filter(seat__swarm=swarm).exclude(state__in=transitions.FINAL_STATES):
        transitions.cancel_job(job, SITE_ACTOR, reason)
    swarm.seats.update(stage=None)


# --- reports ----------------------------------------------------------------------------------------------------------


def store_reports(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store the coordinator's reports, in order."""
    swarm = get_swarm(run)
    reports = []
    for row in rows:
        try:
            reports.append(SwarmReport.model_validate(row))
        except ValidationError:
            logger.warning("Run %s: its coordinator sent an invalid report.", run.pk)
    if not reports:
        return
    seats = {seat.peer: seat for seat in swarm.seats.exclude(peer="")}
    events = [build_event(swarm, report, seats) for report in reports]
    if swarm.events.count() < MAX_EVENTS:
        SwarmEvent.objects.bulk_create(events)
    Seat.objects.bulk_update(seats.values(), ["peer", "stage", "rows"])
    Run.objects.filter(pk=run.pk).update(revision=F("revision") + 1)
    if any(report.lasting for report in reports):
        Job.objects.filter(seat__in=swarm.seats.waiting()).update(excluded_nodes=list_banned_nodes(run))
    if any(report.what == "address" for report in reports):
        swarm.run.refresh_from_db(fields=["state"])
        fill_seats(swarm)


def build_event(swarm: Swarm, report: SwarmReport, seats: dict[str, Seat]) -> SwarmEvent:
    """Update the seats and return the event to store."""
    if report.what in ("address", "end"):  # after "end" the coordinator is gone
        swarm.addresses = list(report.addresses)
        swarm.save(update_fields=["addresses"])
    if report.what == "join" and (seat := find_seat(swarm, report.label)) is not None:
        seat = seats.setdefault(report.peer, seat)
        seat.peer, seat.stage = report.peer, report.stage
    if report.what == "leave" and report.peer in seats:
        seats[report.peer].stage = None
    for peers in (report.held or {}).values():
        for peer, rows in peers.items():
            if peer in seats:
                seats[peer].rows += rows
    return SwarmEvent(
        swarm=swarm,
        at=datetime.fromtimestamp(report.time, UTC),
        what=report.what,
        step=report.step,
        stage=report.stage,
        peer=report.peer,
        name=seats[report.peer].name if report.peer in seats else "",
        why=sanitize_text(report.why, 200),
        data=report.model_dump(include=EVENT_DATA, exclude_none=True),
    )


def find_seat(swarm: Swarm, label: str) -> Seat | None:
    word, _, number = label.partition("-")
    if word != "seat" or not number.isdecimal() or len(number) > 18:
        return None
    return swarm.seats.filter(job=int(number)).first()


def store_seat_report(seat: Seat, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store the last valid report of a seat."""
    for row in reversed(rows):
        try:
            report = SeatReport.model_validate(row)
        except ValidationError:
            continue
        Seat.objects.filter(pk=seat.pk).update(**report.model_dump())
        return


# --- handlers ---------------------------------------------------------------------------------------------------------


class SwarmHandler(TrainHandler):
    """Jobs of kind `swarm`: like training, with seats."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.SwarmOrder:  # type: ignore[override]
        run = Run.objects.with_entry().get(job=job)
        swarm = get_swarm(run)
        return protocol.SwarmOrder(
            run=run.pk,
            dataset=run.season.dataset("train", "dev"),
            config=run_jobs.get_configuration(run),
            **{name: swarm.size[name] for name in ("stages", "minimum", "patience")},
            secret=swarm.secret,
            resume=resume,
        )

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        super().handle_metrics(job, [row for row in rows if row.get("kind") != "swarm"])
        run = Run.objects.with_entry().get(job=job)
        reports = [row for row in rows if row.get("kind") == "swarm"]
        if reports and run.state == Run.State.TRAINING:
            store_reports(run, reports)

    def handle_requeue(self, job: Job, reason: str) -> None:
        super().handle_requeue(job, reason)
        cancel_seats(job, "The run waits for a coordinator.")

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        super().handle_done(job, result)
        cancel_seats(job, "The run is finished.")

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        super().handle_failure(job, cause, reason)
        cancel_seats(job, "The run has failed.")

    def handle_cancellation(self, job: Job, reason: str) -> None:
        super().handle_cancellation(job, reason)
        cancel_seats(job, "The run was cancelled.")


class SeatHandler(JobKind):
    """Jobs of kind `seat`. A lost seat fails, one that is handed back is cancelled; then another one is queued."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.WorkerOrder:
        seat = Seat.objects.select_related("swarm__run__entry", "swarm__run__track").get(job=job)
        swarm, run = seat.swarm, seat.swarm.run
        return protocol.WorkerOrder(
            run=run.pk,
            title=f"{run.entry.title} (run {run.pk}) on {run.track.name}"[:200],
            coordinator=tuple(swarm.addresses),
            label=seat.label,
            credential=make_credential(swarm.secret, seat.label),
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        Seat.objects.filter(job=job).update(node=lease.node, name=lease.node.name)
        self.queue_replacement(job)

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        store_seat_report(job.seat, [row for row in rows if row.get("kind") == "seat"])

    def handle_requeue(self, job: Job, reason: str) -> None:
        transitions.cancel_job(job, SITE_ACTOR, f"Its node has left: {reason}")
        self.queue_replacement(job)

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        store_seat_report(job.seat, [result])
        if result.get("why") not in END_REASONS:
            self.queue_replacement(job)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        self.queue_replacement(job)

    def queue_replacement(self, job: Job) -> None:
        fill_seats(get_swarm(job.seat.swarm.run))

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        seats = Seat.objects.filter(job__in=jobs).select_related("swarm__run__entry")
        return {
            seat.job_id: JobSummary(
                f"A seat in {seat.swarm.run.entry.title}",
                seat.swarm.run.get_absolute_url(),
                f"{seat.rows} rows of text computed",
            )
            for seat in seats
        }
