"""Metrics of the site, read from the database when they are asked for."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.core.files.storage import default_storage
from django.db.models import Avg, Count, Max, Min
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from leaderboard.integrations.github import deliveries
from leaderboard.models import OutboxMessage, Run, Track
from leaderboard.schedule.calendar import list_next_nightlies, list_recent_nights, list_upcoming
from leaderboard.schedule.night_checks import get_last_beat, list_failing_checks
from scheduler.models import Job, Lease, Node

DAY = timedelta(days=1)
PREFIX = "dailytrain_"


class SiteCollector(Collector):
    """Collects the metrics again for each scrape: any web process gives the same answer."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from collect_metrics(timezone.now())


def format_metrics() -> bytes:
    """Return all metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SiteCollector())
    return generate_latest(registry)


def collect_metrics(now: datetime) -> Iterator[GaugeMetricFamily]:
    yield from collect_queue(now)
    yield from collect_leases(now)
    yield from collect_nodes(now)
    yield from collect_background_work(now)
    yield from collect_nights(now)
    yield from collect_storage()


def build_gauge(name: str, meaning: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge without labels; without a sample if the value is None."""
    gauge = GaugeMetricFamily(PREFIX + name, meaning)
    if value is not None:
        gauge.add_metric([], value)
    return gauge


def build_labeled_gauge(name: str, meaning: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(PREFIX + name, meaning, labels=[label])
    for key, value in values:
        gauge.add_metric([key], value)
    return gauge


def compute_age(now: datetime, since: datetime | None) -> float | None:
    return None if since is None else max((now - since).total_seconds(), 0.0)


# --- groups of metrics -----------------------------------------------------------------------------------------------


def collect_queue(now: datetime) -> Iterator[GaugeMetricFamily]:
    queued = Job.objects.filter(state=Job.State.QUEUED).order_by()
    rows = list(queued.values("kind").annotate(count=Count("pk"), since=Min("queued_at")).order_by("kind"))
    yield build_labeled_gauge(
        "queue_jobs", "Queued jobs by kind.", "kind", [(row["kind"], row["count"]) for row in rows]
    )
    yield build_labeled_gauge(
        "queue_oldest_seconds",
        "How long the oldest queued job has waited, by kind.",
        "kind",
        [(row["kind"], compute_age(now, row["since"]) or 0.0) for row in rows],
    )
    held = Job.objects.filter(state=Job.State.HELD).count()
    yield build_gauge("held_jobs", "Jobs that wait for a maintainer.", held)


def collect_leases(now: datetime) -> Iterator[GaugeMetricFamily]:
    ended = Lease.objects.filter(ended_at__gte=now - DAY)
    lost = ended.filter(state=Lease.State.LOST).count()
    yield build_gauge("leases_lost_day", "Leases that were lost in the last 24 hours.", lost)
    scores = ended.filter(job__kind="score", state=Lease.State.FINISHED, outcome="done")
    seconds = scores.aggregate(mean=Avg("seconds"), longest=Max("seconds"))
    yield build_gauge("score_mean_seconds", "Mean duration of the scores of the last 24 hours.", seconds["mean"])
    yield build_gauge("score_longest_seconds", "Longest score of the last 24 hours.", seconds["longest"])


def collect_nodes(now: datetime) -> Iterator[GaugeMetricFamily]:
    counts = dict(Node.objects.order_by().values_list("state").annotate(Count("pk")))
    states = [(state, counts.get(state, 0)) for state in Node.State.values]
    yield build_labeled_gauge("nodes", "Nodes by state.", "state", states)
    yield build_gauge("nodes_failing", "Nodes that get no jobs, because they fail.", counts.get(Node.State.FAILING, 0))
    scorers = Node.objects.filter(trusted=True, state=Node.State.ONLINE).count()
    yield build_gauge("trusted_nodes_online", "Trusted nodes that are online: they score.", scorers)
    waiting = Job.objects.filter(kind="score", state=Job.State.QUEUED).aggregate(since=Min("queued_at"))["since"]
    yield build_gauge(
        "score_wait_without_scorer_seconds",
        "How long the oldest score has waited while no trusted node is online; 0 if one is.",
        0.0 if scorers else compute_age(now, waiting) or 0.0,
    )


def measure_beat_age(now: datetime) -> float:
    """Return the seconds since Celery beat last started a task; infinity before the first.

    Where that lies ahead, the clock was set back, and beat waits for as long.
    """
    last = get_last_beat()
    return math.inf if last is None else abs((now - last).total_seconds())


def collect_background_work(now: datetime) -> Iterator[GaugeMetricFamily]:
    meaning = "Since Celery beat last started a task; infinite before the first."
    yield build_gauge("beat_age_seconds", meaning, measure_beat_age(now))
    unfinished = OutboxMessage.objects.filter(state__in=(OutboxMessage.State.PENDING, OutboxMessage.State.CLAIMED))
    delivered = unfinished.filter(kind=deliveries.KIND).aggregate(since=Min("created_at"))["since"]
    yield build_gauge(
        "webhook_lag_seconds", "Age of the oldest webhook of GitHub not yet handled.", compute_age(now, delivered) or 0
    )
    due = OutboxMessage.objects.filter(state=OutboxMessage.State.PENDING, not_before__lte=now)
    waiting = due.aggregate(since=Min("not_before"))["since"]
    yield build_gauge(
        "outbox_lag_seconds",
        "How long the oldest due message to GitHub or the Hub waits.",
        compute_age(now, waiting) or 0,
    )
    failed = OutboxMessage.objects.filter(state=OutboxMessage.State.FAILED).count()
    yield build_gauge("outbox_failed", "Messages to GitHub or the Hub that cannot be sent.", failed)


def collect_nights(now: datetime) -> Iterator[GaugeMetricFamily]:
    due, nights = list_upcoming(now), list_recent_nights(now)
    planned = [line.planned for line in list_next_nightlies(due, nights, now)]
    failing = [(night.track.slug, len(list_failing_checks(night))) for night in planned]
    yield build_labeled_gauge(
        "night_obstacles", "Checks because of which the next night of a track would fail.", "track", failing
    )
    yield build_labeled_gauge(
        "night_age_seconds",
        "Since the last nightly run of a track finished; without one, since the track exists.",
        "track",
        [(slug, compute_age(now, since) or 0.0) for slug, since in list_last_nights()],
    )


def list_last_nights() -> list[tuple[str, datetime]]:
    """Return for each track with a night when its last one finished, or when the first one of all started."""
    finished = Run.objects.filter(purpose=Run.Purpose.NIGHTLY, state=Run.State.FINISHED).order_by()
    last = dict(finished.values_list("track").annotate(Max("finished_at")))
    tracks = Track.objects.filter(nightly=True, season__active=True).values_list("pk", "slug", "season__started_at")
    return [(slug, since) for pk, slug, started in tracks if (since := last.get(pk) or started) is not None]


def collect_storage() -> Iterator[GaugeMetricFamily]:
    folders = {"home": Path(settings.HOME)}
    if not settings.S3_BUCKET:
        folders["storage"] = Path(default_storage.path(""))
    used = [(name, get_used_share(folder)) for name, folder in folders.items()]
    yield build_labeled_gauge("disk_used_share", "Used share of the disk of a folder, from 0 to 1.", "folder", used)


def get_used_share(folder: Path) -> float:
    usage = shutil.disk_usage(next(parent for parent in (folder, *folder.parents) if parent.is_dir()))
    return usage.used / usage.total
