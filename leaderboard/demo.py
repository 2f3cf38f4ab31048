"""A board to look at: real small training runs of this project, from `fixtures/demo.json.gz` (`benchmarks/demo.py`).

Their curves, samples and scores come in the way those of nodes do: through `metrics.store`, `results.judge` and
`confirmations.conclude`, so multipliers and records are what this site makes of these numbers. What is laid out anew is
the calendar: one entry a night, ending last night. The season is closed, so nothing of it ever starts again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from leaderboard.demo_label import NODE
from leaderboard.job_handlers import metrics, train
from leaderboard.job_handlers.score import finish_scored_run
from leaderboard.models import Entry, Night, Run, Season, Track
from leaderboard.rankings import confirmations
from leaderboard.rankings.score_validation import Verdict
from leaderboard.rankings.standings_store import recompute_standings
from scheduler.models import Blob, Event, Job, Lease, Node, Sponsor

FIXTURE = Path(__file__).parent / "fixtures" / "demo.json.gz"
SCORER = "demo-scorer"
SHARED = "It was trained on a machine that others used at the same time, so its seconds do not compare."
DEPARTS = time(2, 0, tzinfo=UTC)
LONGEST_NIGHT = timedelta(hours=4)
"""From midnight: when the last entry has arrived for sure."""
ABOUT = "What a track has: a ladder of its baseline, entries with several seeds each, records with their confirmation."
PROPOSED = ("RWKV-5 at another size", "rwkv5", "Half the width and twice the steps, as for the narrower gpt.")


class DatabaseNotEmptyError(ValueError):
    """The demo needs an empty database: this one has seasons already."""


@dataclass
class Clock:
    """When things happened: a night for each entry, its runs one after the other."""

    now: datetime

    def later(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


def load_fixture() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(FIXTURE.read_bytes()))
    return content


@transaction.atomic
def seed_demo(today: datetime | None = None) -> Track:
    """Fill an empty database with the demo; raise DatabaseNotEmptyError where it is not."""
    if Season.objects.exists():
        raise DatabaseNotEmptyError(DatabaseNotEmptyError.__doc__)
    today, content = today or timezone.now(), load_fixture()
    track, pool = new_track(content), Pool.of(content)
    nights = len(content["entries"])
    for number, told in enumerate(content["entries"]):
        night = (today - LONGEST_NIGHT - timedelta(days=nights - 1 - number)).date()
        clock = Clock(datetime.combine(night, DEPARTS))
        add_entry(track, told, content, pool, clock)
    add_proposed_entry(track, content["entries"][0]["sha"], today)
    Event.objects.update(announced=True)  # not news for anyone
    recompute_standings(track)  # so that the board shows before a worker runs
    return track


def new_track(content: Mapping[str, Any]) -> Track:
    season = Season.objects.create(name="Demo season", active=False, **content["season"])
    track = Track(
        slug="small",
        name="Demo: 0.4 teraFLOPs on one core",
        description=ABOUT,
        season=season,
        budget=content["budget"],
        expected_seconds=30.0,
        is_default=True,
        **{name: content[name] for name in ("config", "ladder", "suite", "suite_limit")},
        seeds=3,
        probe_seconds=0.0,
    )
    track.full_clean()
    track.save()
    return track


# --- the pool --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pool:
    """Two nodes that have gone home, and the code that ran there."""

    trainer: Node
    scorer: Node
    release: Blob

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Pool:
        user = User(username="demo-sponsor")
        user.set_unusable_password()
        user.save()
        Sponsor.objects.create(user=user, name="Demo sponsor")
        release = Blob.objects.create(name="demo", **content["release"])
        return cls(new_node(NODE, content, user), new_node(SCORER, content, None), release)


def new_node(name: str, content: Mapping[str, Any], owner: User | None) -> Node:
    return Node.objects.create(
        name=name,
        owner=owner,
        state=Node.State.OFFLINE,
        reason="A machine of the demo: it does not come back.",
        trusted=True,
        labels=["cpu", "demo"],
        hardware=content["machine"],
    )


def add_job(run: Run, kind: str, pool: Pool, begins: datetime, seconds: float) -> Job:
    """Add a job that is done, and the lease under which it was."""
    node = pool.trainer if kind == "train" else pool.scorer
    ends = begins + timedelta(seconds=seconds)
    moments = {"created_at": begins, "queued_at": begins, "state_since": ends, "finished_at": ends}
    job = Job.objects.create(
        kind=kind, state=Job.State.DONE, track=run.track.slug, author=run.entry.author, release=pool.release,
        expected_seconds=run.expected_seconds, attempts=1, **moments,
    )  # fmt: skip
    Lease.objects.create(
        job=job, node=node, attempt=1, state=Lease.State.FINISHED, token_hash=f"demo-{job.pk}", started_at=begins,
        expires_at=ends, ended_at=ends, heartbeat_at=ends, outcome="done", phase="done", seconds=seconds,
    )  # fmt: skip
    Node.objects.filter(pk=node.pk).update(last_seen=ends)
    return job


# --- entries and their runs ------------------------------------------------------------------------------------------


def add_entry(track: Track, told: Mapping[str, Any], content: Mapping[str, Any], pool: Pool, clock: Clock) -> None:
    """Add an entry with all of its runs, and what the site decides about it; the first one is the baseline."""
    is_first = track.season.baseline_id is None
    entry = Entry.objects.create(
        kind=Entry.Kind.MAIN if is_first else Entry.Kind.ARCHITECTURE,
        state=Entry.State.APPROVED,
        title=f"main, {clock.now:%-d %b}" if is_first else told["title"],
        author="" if is_first else "demo author",
        repository=settings.MAIN_REPOSITORY,
        track=track,
        approved_at=clock.now,
        created_at=clock.now,
        **{name: told[name] for name in ("architecture", "hypothesis", "sha", "config")},
    )
    record_event(entry, clock.now, "Approved for the demo.", actor="demo")
    if is_first:
        track.season.baseline = entry
        track.season.save()
    made = [add_run(entry, one, content, pool, clock) for one in told["runs"]]
    if is_first:
        sentence = f"{entry.title} departed as the baseline of the demo."
        Night.objects.create(
            date=clock.now.date(),
            track=track,
            sha=entry.sha,
            run=made[0],
            sentence=sentence,
            created_at=made[0].created_at,
        )
    if any(run.purpose == Run.Purpose.CONFIRMATION for run in made):
        with at(clock.now):
            confirmations.conclude_confirmation(entry)


def add_run(entry: Entry, told: Mapping[str, Any], content: Mapping[str, Any], pool: Pool, clock: Clock) -> Run:
    """Add a run the way a node brings one: its curve, then its verdict or its failure."""
    begins, lasted = clock.later(5), told["train"][-1][content["columns"].index("seconds")]
    run = Run(
        entry=entry,
        track=entry.track,
        season=entry.track.season,
        purpose=purpose(entry, told),
        seed=told["seed"],
        budget=told["budget"],
        state=Run.State.TRAINING,
        config=told["config"],
        node_name=pool.trainer.name,
        node_class=f"{content['machine']['cpus']} CPU cores",
        seconds_void=SHARED,
        created_at=begins,
        started_at=begins,
    )
    run.job = add_job(run, "train", pool, begins, lasted)
    run.save()
    record_event(run, begins, f"Training on {pool.trainer.name}.", actor=f"node:{pool.trainer.name}")
    metrics.store_metrics(run, lines(told, content["columns"]))
    clock.later(lasted)
    if "failure" in told:
        with at(clock.now):
            train.fail_run(run, told["failure"]["cause"], told["failure"]["reason"])
    else:
        score_run(run, told["score"], pool, clock)
    Run.objects.filter(pk=run.pk).update(finished_at=clock.now)
    return run


def score_run(run: Run, told: Mapping[str, Any], pool: Pool, clock: Clock) -> None:
    seconds, trained = float(told["seconds"]), clock.now
    record_event(run, trained, f"Trained to the end, step {told['step']}.")
    score_job = add_job(run, "score", pool, trained, seconds)
    Run.objects.filter(pk=run.pk).update(state=Run.State.SCORING, score_job=score_job, trained_at=trained, fraction=1.0)
    run.refresh_from_db()
    with at(clock.later(seconds)):
        finish_scored_run(run, Verdict.model_validate(told), pool.scorer.name)


def purpose(entry: Entry, told: Mapping[str, Any]) -> Run.Purpose:
    if entry.kind == Entry.Kind.MAIN:
        is_first = told["budget"] == entry.track.budget and told["seed"] == 1
        return Run.Purpose.NIGHTLY if is_first else Run.Purpose.LADDER
    return Run.Purpose.CONFIRMATION if told["confirms"] else Run.Purpose.ENTRY


def lines(told: Mapping[str, Any], columns: list[str]) -> list[dict[str, Any]]:
    """Return the curve and the samples as a node sends them."""
    points = [{"kind": kind, **dict(zip(columns, row, strict=True))} for kind in ("train", "dev") for row in told[kind]]
    kept = [{name: value for name, value in point.items() if value is not None} for point in points]
    return [*kept, *({"kind": "sample", "step": s, "prompt": p, "text": t} for s, p, t in told["samples"])]


def add_proposed_entry(track: Track, sha: str, today: datetime) -> None:
    """Add an entry that nobody has approved: what a queue with somebody in it looks like."""
    title, architecture, hypothesis = PROPOSED
    entry = Entry.objects.create(
        kind=Entry.Kind.ARCHITECTURE, title=title, architecture=architecture, hypothesis=hypothesis, sha=sha,
        author="demo author", repository=settings.MAIN_REPOSITORY, track=track, created_at=today,
        config={"model": {"width": 64}},
    )  # fmt: skip
    Run.objects.create(
        entry=entry, track=track, season=track.season, seed=1, budget=track.budget, created_at=today,
        reason="Waits for a maintainer's approval.",
    )  # fmt: skip
    record_event(entry, today, "Proposed for the demo.", actor="demo")


# --- the audit log, at the time of the demo ---------------------------------------------------------------------------


def record_event(target: Entry | Run, moment: datetime, sentence: str, *, actor: str = "site") -> None:
    event = Event.record(actor, target, sentence)
    Event.objects.filter(pk=event.pk).update(at=moment)


class at:
    """Whatever the site writes into its log within, it wrote at this moment."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def __enter__(self) -> None:
        self.last = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0

    def __exit__(self, *error: object) -> None:
        Event.objects.filter(pk__gt=self.last).update(at=self.moment)
