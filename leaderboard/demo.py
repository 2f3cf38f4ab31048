"""Demo data: real small training runs of this project, from `fixtures/demo.json.gz` (`benchmarks/demo.py`).

Graphs, curves, samples and scores pass through the same code as those of nodes. Only the dates are new: one entry and
one seed of the baseline a night, ending last night. The season is open and its text is part of the package, so an entry
that is submitted to the demo is trained, scored and ranked by `manage.py run`. The ladder is complete, and no track is
nightly: nothing else starts by itself.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from leaderboard import graphs, run_jobs
from leaderboard import runs as run_queue
from leaderboard.demo_label import NODE
from leaderboard.job_handlers import metrics, train
from leaderboard.job_handlers.score import finish_scored_run
from leaderboard.models import Entry, Night, Run, Season, TracedGraph, Track
from leaderboard.rankings import confirmations
from leaderboard.rankings.score_validation import Verdict
from leaderboard.rankings.standings_store import recompute_standings
from scheduler import storage
from scheduler.campaigns import producer, transitions
from scheduler.campaigns.models import Campaign
from scheduler.models import SITE_ACTOR, Blob, Checkpoint, Event, Job, JobFile, Lease, Node, Sponsor
from trainer import protocol
from trainer.data.corpora import python_docs
from trainer.protocol.files import RUN_FILE, WEIGHTS_FILE

FIXTURE = Path(__file__).parent / "fixtures" / "demo.json.gz"
WEIGHTS = FIXTURE.with_name("demo.safetensors")
"""Final weights of the best run, in bf16."""
SCORER = "demo-scorer"
NIGHT_START = time(2, 0, tzinfo=UTC)
LONGEST_NIGHT = timedelta(hours=4)
"""Longest time from midnight to the end of the last entry."""
TRACK_DESCRIPTION = (
    "What a track has: a ladder of its baseline, entries with several seeds each, records with their confirmation. "
    "Seconds are those of one core, without the time that other programs took."
)
CAMPAIGN_DESCRIPTION = "Python's documentation, rephrased in easy words."
PROPOSED_ENTRY = ("RWKV-5 at another size", "rwkv5", "Half the width and twice the steps: is it the model or its size?")


class DatabaseNotEmptyError(ValueError):
    """The demo needs an empty database: this one already has seasons."""


def load_fixture() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(gzip.decompress(FIXTURE.read_bytes())))


@transaction.atomic
def seed_demo(today: datetime | None = None) -> Track:
    """Fill an empty database with the demo. Raises DatabaseNotEmptyError."""
    if Season.objects.exists():
        raise DatabaseNotEmptyError(DatabaseNotEmptyError.__doc__)
    today, content = today or timezone.now(), load_fixture()
    demo = DemoBuilder(content)
    baseline, *entries = content["entries"]
    nights = [(today - LONGEST_NIGHT - timedelta(days=days)).date() for days in reversed(range(len(entries) + 1))]
    seeds = [run for run in baseline["runs"] if run["budget"] == content["budget"]]
    ladder = [run for run in baseline["runs"] if run["budget"] != content["budget"]]
    main, graph = demo.add_entry({**baseline, "runs": [seeds[0], *ladder]}, nights[0])
    for night, entry, seed in zip(nights[1:], entries, seeds[1:], strict=True):
        demo.add_entry(entry, night)
        demo.add_baseline_night(main, graph, seed, night)
    demo.add_proposed_entry(baseline["sha"], today)
    demo.add_weights()
    add_campaign()
    Event.objects.update(announced=True)  # so that the demo sends no notices
    recompute_standings(demo.track)  # so that the board shows before a worker runs
    return demo.track


class DemoBuilder:
    """Creates the demo's rows. `now` is the time at which the next thing happens."""

    now: datetime

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.track = create_track(content)
        owner = User(username="demo-sponsor")
        owner.set_unusable_password()
        owner.save()
        Sponsor.objects.create(user=owner, name="Demo sponsor")
        self.release = Blob.objects.create(name="demo", **content["release"])
        self.trainer = self.create_node(NODE, owner)
        self.scorer = self.create_node(SCORER, None)

    def create_node(self, name: str, owner: User | None) -> Node:
        return Node.objects.create(
            name=name, owner=owner, state=Node.State.OFFLINE, reason="A machine of the demo: it does not come back.",
            trusted=True, labels=["cpu", "demo"], hardware=self.content["machine"],
        )  # fmt: skip

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    def record_event(self, target: Entry | Run, sentence: str, *, actor: str = SITE_ACTOR) -> None:
        with self.at_now():
            Event.record(actor, target, sentence)

    @contextmanager
    def at_now(self) -> Iterator[None]:
        """Date the events that are recorded within to the demo's time."""
        last = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        yield
        Event.objects.filter(pk__gt=last).update(at=self.now)

    def add_entry(self, data: Mapping[str, Any], night: date) -> tuple[Entry, TracedGraph]:
        """Add an entry with its runs and what the site decides about it; the first one is the baseline."""
        self.now = datetime.combine(night, NIGHT_START)
        season = self.track.season
        is_first = season.baseline_id is None
        entry = Entry.objects.create(
            kind=Entry.Kind.MAIN if is_first else Entry.Kind.ARCHITECTURE, state=Entry.State.APPROVED,
            title=f"main, {self.now:%-d %b}" if is_first else data["title"], author="" if is_first else "demo author",
            repository=settings.MAIN_REPOSITORY, track=self.track, approved_at=self.now, created_at=self.now,
            source_bytes=0, **{name: data[name] for name in ("architecture", "hypothesis", "sha", "config")},
        )  # fmt: skip
        self.record_event(entry, "Approved for the demo.", actor="demo")
        if is_first:
            season.baseline = entry
            season.save()
        graph = self.add_graph(entry, data["graph"])
        runs = [self.add_run(entry, graph, run) for run in data["runs"]]
        if is_first:
            self.add_night(night, runs[0], f"{entry.title} departed as the baseline of the demo.")
        if any(run.purpose == Run.Purpose.CONFIRMATION for run in runs):
            with self.at_now():
                confirmations.conclude_confirmation(entry)
        return entry, graph

    def add_baseline_night(self, main: Entry, graph: TracedGraph, data: Mapping[str, Any], night: date) -> None:
        """Add a night on which main had not moved: one more seed of the baseline."""
        sentence = f"main has not moved: the night goes to seed {data['seed']} of the baseline."
        self.add_night(night, self.add_run(main, graph, data), sentence)

    def add_night(self, night: date, run: Run, sentence: str) -> None:
        Night.objects.create(
            date=night, track=self.track, sha=run.entry.sha, run=run, sentence=sentence, created_at=run.created_at
        )

    def add_weights(self) -> None:
        """Add the weights with which the best run writes for visitors."""
        run = Run.objects.get(entry__title=self.content["weights"]["title"], seed=self.content["weights"]["seed"])
        assert run.job is not None
        blob = storage.store_bytes(WEIGHTS.read_bytes())
        file = storage.build_file_reference(blob, WEIGHTS_FILE)
        manifest = protocol.Checkpoint(step=run.step, files=(file,)).model_dump(mode="json", exclude_none=True)
        checkpoint = Checkpoint.objects.create(job=run.job, step=run.step, manifest=manifest)
        checkpoint.blobs.add(blob)
        configuration = storage.store_bytes(json.dumps(run.config).encode())
        JobFile.objects.create(job=run.job, path=RUN_FILE, blob=configuration)
        Run.objects.filter(pk=run.pk).update(checkpoint=checkpoint)

    def add_graph(self, entry: Entry, data: Mapping[str, Any]) -> TracedGraph:
        """Add the entry's graph the way its smoke job brings it."""
        config = run_jobs.get_entry_configuration(entry, self.track)
        graph = graphs.queue_trace(entry, self.track, self.track.season, config, self.release)
        self.finish_job(graph.job, self.scorer, data["seconds"])
        for name, text in data["files"].items():
            blob = storage.store_bytes(text.encode())
            JobFile.objects.create(job=graph.job, path=f"{graphs.FOLDER}/{name}", blob=blob)
        graphs.lock_season(graph.season_id)
        run_queue.request_baseline_graph(graph, self.release)
        graphs.store_trace(graph, data["summary"], "")
        self.advance(data["seconds"])
        return graph

    def add_run(self, entry: Entry, graph: TracedGraph, data: Mapping[str, Any]) -> Run:
        """Add a run the way a node brings one: its curve, then its verdict or its failure."""
        begins, seconds = self.advance(5), data["train"][-1][self.content["columns"].index("seconds")]
        run = Run(
            entry=entry, track=entry.track, season=entry.track.season, graph=graph, purpose=find_purpose(entry, data),
            state=Run.State.TRAINING, node_name=self.trainer.name,
            node_class=f"one of {self.content['machine']['cpus']} CPU cores",
            created_at=begins, started_at=begins, **{name: data[name] for name in ("seed", "budget", "config")},
        )  # fmt: skip
        run.job = self.add_job(run, "train", self.trainer, seconds)
        run.save()
        self.record_event(run, f"Training on {self.trainer.name}.", actor=f"node:{self.trainer.name}")
        metrics.store_metrics(run, build_metric_lines(data, self.content["columns"]))
        self.advance(seconds)
        if "failure" in data:
            with self.at_now():
                train.mark_run_failed(run, data["failure"]["cause"], data["failure"]["reason"])
        else:
            self.score_run(run, data["score"])
        Run.objects.filter(pk=run.pk).update(finished_at=self.now)
        return run

    def score_run(self, run: Run, score: Mapping[str, Any]) -> None:
        self.record_event(run, f"Trained to the end, step {score['step']}.")
        job = self.add_job(run, "score", self.scorer, float(score["seconds"]))
        Run.objects.filter(pk=run.pk).update(state=Run.State.SCORING, score_job=job, trained_at=self.now, fraction=1.0)
        run.refresh_from_db()
        self.advance(float(score["seconds"]))
        with self.at_now():
            finish_scored_run(run, Verdict.model_validate(score), self.scorer.name)

    def add_job(self, run: Run, kind: str, node: Node, seconds: float) -> Job:
        """Add a finished job that began now."""
        job = Job.objects.create(
            kind=kind, track=run.track.slug, author=run.entry.author, release=self.release,
            expected_seconds=run.expected_seconds,
        )  # fmt: skip
        self.finish_job(job, node, seconds)
        return job

    def finish_job(self, job: Job, node: Node, seconds: float) -> None:
        """End a job that began now, and add its lease."""
        begins, ends = self.now, self.now + timedelta(seconds=seconds)
        Job.objects.filter(pk=job.pk).update(
            state=Job.State.DONE, attempts=1, created_at=begins, queued_at=begins, state_since=ends, finished_at=ends,
        )  # fmt: skip
        Lease.objects.create(
            job=job, node=node, attempt=1, state=Lease.State.FINISHED, token_hash=f"demo-{job.pk}", started_at=begins,
            expires_at=ends, ended_at=ends, heartbeat_at=ends, outcome="done", phase="done", seconds=seconds,
        )  # fmt: skip
        Node.objects.filter(pk=node.pk).update(last_seen=ends)

    def add_proposed_entry(self, sha: str, today: datetime) -> None:
        """Add an entry that waits for approval."""
        self.now, track = today, self.track
        title, architecture, hypothesis = PROPOSED_ENTRY
        entry = Entry.objects.create(
            kind=Entry.Kind.ARCHITECTURE, title=title, architecture=architecture, hypothesis=hypothesis, sha=sha,
            author="demo author", repository=settings.MAIN_REPOSITORY, track=track, created_at=today,
            config={"model": {"width": 64}},
        )  # fmt: skip
        Run.objects.create(
            entry=entry, track=track, season=track.season, seed=1, budget=track.budget, created_at=today,
            reason="Waits for a maintainer's approval.",
        )  # fmt: skip
        self.record_event(entry, "Proposed for the demo.", actor="demo")


def create_track(content: Mapping[str, Any]) -> Track:
    season = Season.objects.create(name="Demo season", **content["season"])
    track = Track(
        slug="small", name="Demo: ten seconds on one core", description=TRACK_DESCRIPTION, season=season,
        expected_seconds=30.0, is_default=True, seeds=2, probe_seconds=0.0,
        **{name: content[name] for name in ("budget", "config", "ladder", "suite", "suite_limit")},
    )  # fmt: skip
    track.full_clean()
    track.save()
    return track


def add_campaign() -> None:
    """Start a campaign that rephrases the text of the season."""
    folder = Path(settings.REPHRASE_FILES)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(python_docs.FILE, folder / python_docs.FILE.name)
    campaign = Campaign.objects.create(
        slug="python-docs", name="Demo: Python's documentation in easy words", about=CAMPAIGN_DESCRIPTION,
        dataset=python_docs.FILE.name, styles=["easy"], license="other", low_mark=20, high_mark=40,
    )  # fmt: skip
    transitions.start_campaign(campaign, "demo")
    producer.refill_campaign(campaign)


def find_purpose(entry: Entry, run: Mapping[str, Any]) -> Run.Purpose:
    if entry.kind == Entry.Kind.MAIN:
        is_first = run["budget"] == entry.track.budget and run["seed"] == 1
        return Run.Purpose.NIGHTLY if is_first else Run.Purpose.LADDER
    return Run.Purpose.CONFIRMATION if run["confirms"] else Run.Purpose.ENTRY


def build_metric_lines(run: Mapping[str, Any], columns: list[str]) -> list[dict[str, Any]]:
    """Return the curve and the samples as a node sends them."""
    rows = [(kind, dict(zip(columns, row, strict=True))) for kind in ("train", "dev") for row in run[kind]]
    points = [{"kind": kind, **{name: value for name, value in row.items() if value is not None}} for kind, row in rows]
    return [*points, *({"kind": "sample", "step": s, "prompt": p, "text": t} for s, p, t in run["samples"])]
