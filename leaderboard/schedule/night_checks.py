"""Everything between now and a valid night: for `manage.py check_night`, its page in the admin and the calendar.

A check is one short function in `CHECKS`. It reads rows, files and settings, and changes nothing.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path, PurePosixPath

import httpx
from celery import current_app
from django.conf import settings
from django.core.files.storage import default_storage
from django.db.models import Max
from django_celery_beat.models import PeriodicTask
from kombu.exceptions import OperationalError

from leaderboard.models import Entry, Season, SeasonFile, Track
from leaderboard.models.seasons import MANIFEST
from leaderboard.schedule import calendar, ladder, nightly, site_forecast
from leaderboard.schedule.planned_night import PlannedNight
from leaderboard.schedule.scorers import list_scorer_times
from leaderboard.schedule.track_templates import MFU
from scheduler import checkpoints, estimates, node_slots, storage
from scheduler.matching import MODEL_LABEL, describe_needs, parse_labels
from scheduler.models import Blob, Checkpoint, Node
from scheduler.release.wheel import find_wheel
from trainer.accounting.budget import Budget
from trainer.accounting.peak_flops import PEAK_FLOPS, find_slowest_flops
from trainer.data.sizes import BYTES_PER_TOKEN
from trainer.protocol.files import OPTIMIZER_FILE, WEIGHTS_FILE, is_weights_file

NIGHTS = 30
BEAT_SILENCE = timedelta(minutes=10)
"""Beat writes the times of its tasks every three minutes."""
REQUEST_SECONDS = 5.0
PING_SECONDS = 1.0
GB = 10**9

TOKENS_PER_PARAMETER = 20
"""Compute-optimal (Hoffmann et al. 2022, arXiv 2203.15556)."""
MOST_EPOCHS = 4
"""Repeated text is nearly as good as new text up to here (Muennighoff et al. 2023, arXiv 2305.16264)."""
FORMAT_WITH_PROMPTS = 2  # of a manifest: its tokens have 4 bytes (`trainer.data.preparation`)


class CheckState(StrEnum):
    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class NightCheck:
    name: str
    state: CheckState
    advice: str
    """The result of a check and its remedy."""
    is_required: bool
    """Whether the night fails without it."""

    @property
    def fails_night(self) -> bool:
        return self.is_required and self.state == CheckState.MISSING

    @property
    def label(self) -> str:
        """The state; a missing part without which the night is trained, but incomplete, is marked as optional."""
        return "missing (optional)" if self.state == CheckState.MISSING and not self.is_required else str(self.state)


Finding = tuple[CheckState, str]


def ok(found: str) -> Finding:
    return CheckState.OK, found


def missing(advice: str) -> Finding:
    return CheckState.MISSING, advice


def unknown(advice: str) -> Finding:
    return CheckState.UNKNOWN, advice


def check_next_night(track: Track, now: datetime) -> list[NightCheck]:
    """Return all checks of the track's next night."""
    slots = estimates.QueueEstimates(now).slots
    return list_night_checks(PlannedNight(track, now, calendar.get_next_nightly(now), slots))


def list_night_checks(night: PlannedNight, *, only_required: bool = False) -> list[NightCheck]:
    """Return the checks of a night. With `only_required` they read rows, files and settings, and make no request."""
    return [
        NightCheck(name, *check(night), is_required)
        for name, check, is_required in CHECKS
        if not only_required or (is_required and check not in REQUESTS)
    ]


def list_failing_checks(night: PlannedNight) -> list[NightCheck]:
    """Return the checks because of which the night would fail, without making a request."""
    return [check for check in list_night_checks(night, only_required=True) if check.fails_night]


# --- schedule and season ---------------------------------------------------------------------------------------------


def check_schedule(night: PlannedNight) -> Finding:
    if not night.track.nightly:
        return missing("The track has no nightly run. Mark it as nightly in the admin.")
    if not night.track.season.active:
        return missing(f"{night.track.season} is not active. Activate it in the admin, or move the track.")
    if night.due_at is None:
        return missing("No nightly run is scheduled. Run manage.py install_schedule; enable the task in the admin.")
    return ok(f"Due {format_time(night.due_at)}.")


def format_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%-d %b, %H:%M} UTC"


def check_beat(night: PlannedNight) -> Finding:
    last = get_last_beat()
    if last is not None and last - night.now > BEAT_SILENCE:
        return missing(
            f"A periodic task has started {format_time(last)}, in the future: the clock was ahead, and no task starts "
            "until then. Run manage.py check_beat, which corrects the times; start beat again."
        )
    if last is None or night.now - last > BEAT_SILENCE:
        since = f"since {format_time(last)}" if last else "yet"
        return missing(
            f"No periodic task has started {since}. Start `celery -A dailytrain beat` and a worker, and wait 3 minutes."
        )
    return ok(f"The last periodic task started {format_time(last)}.")


def get_last_beat() -> datetime | None:
    """Return when Celery beat last started a task."""
    last: datetime | None = PeriodicTask.objects.filter(enabled=True).aggregate(last=Max("last_run_at"))["last"]
    return last


def check_worker(night: PlannedNight) -> Finding:
    """Check that a worker answers: beat sends tasks without one, too."""
    try:
        with current_app.connection_for_write() as connection:
            answers = current_app.control.ping(timeout=PING_SECONDS, connection=connection)
    except (OSError, OperationalError) as error:
        return missing(f"Redis does not answer ({error}). Start it, or correct REDIS_URL.")
    if not answers:
        return missing("No worker answers. Start `celery -A dailytrain worker`.")
    return ok(f"{len(answers)} worker{'' if len(answers) == 1 else 's'} answered.")


def check_earlier_night(night: PlannedNight) -> Finding:
    run = nightly.get_unfinished_run(night.track)
    if run is None:
        return ok("No run of an earlier night is unfinished.")
    return missing(
        f"Run {run.pk} of an earlier night is {run.state}. The night starts when it has ended; cancel it in the admin "
        "to start in time."
    )


def check_main(night: PlannedNight) -> Finding:
    last = night.track.nights.first()
    if last is None:
        return unknown(
            f"No night has read {settings.MAIN_BRANCH} of {settings.MAIN_REPOSITORY} yet. docs/how-to/github.md "
            "lists what to check."
        )
    if last.problem:
        return missing(f"It could not be trained last time: {last.problem} Repair it; the baseline is trained instead.")
    return ok(f"It was at {last.sha[:8]} on {last.date:%-d %b}.")


def check_season(night: PlannedNight) -> Finding:
    season = night.track.season
    if not season.is_prepared:
        return missing(f"The dataset of {season} is not prepared. Run manage.py prepare_season --season '{season}'.")
    files = season.files.filter(kind=SeasonFile.Kind.DATASET).select_related("blob")
    store = f"Run manage.py prepare_season --season '{season}'"
    if not files:
        return unknown(f"Each node prepares {season.corpus} for itself. {store} to store it once.")
    if not season.is_stored:
        return missing(f"The storage has only a part of {season}, which no node downloads. {store} to continue.")
    if settings.S3_BUCKET:
        return ok(f"{season}: dataset {season.dataset_hash[:12]}, {len(files)} files in the bucket.")
    if lost := [file.path for file in files if not default_storage.exists(file.blob.name)]:
        return missing(f"The storage lacks {len(lost)} files of {season}, first {lost[0]}. Restore them.")
    return ok(f"{season}: dataset {season.dataset_hash[:12]}, {len(files)} files in the storage.")


def check_text(night: PlannedNight) -> Finding:
    season, needed = night.track.season, estimate_tokens(night.track)
    stored = count_stored_tokens(season)
    if not stored and season.limit_bytes is None:
        return unknown(f"The size of {season.corpus} is not recorded.")
    if needed is None:
        return unknown(f"The tokens of {night.track.budget} on this hardware are not known.")
    there = stored or (season.limit_bytes or 0) / BYTES_PER_TOKEN
    if there * MOST_EPOCHS < needed:
        return missing(
            f"{season} has about {there:.1e} tokens, and the night reads at least {needed:.1e}: more than "
            f"{MOST_EPOCHS} times each. Run manage.py create_season with --tokens {needed / MOST_EPOCHS / 1e9:.2g}B."
        )
    return ok(f"About {there:.1e} tokens, for a night that reads {needed:.1e}.")


def count_stored_tokens(season: Season) -> float:
    """Return the tokens of the stored shards for training: 4 bytes each with a large vocabulary or prompts, else 2."""
    files = season.files.filter(kind=SeasonFile.Kind.DATASET)
    stored = sum(files.filter(path__startswith="train/").values_list("blob__size", flat=True))
    is_wide = (season.vocabulary_size or 0) > 2**16
    if stored and not is_wide and (manifest := files.filter(path=MANIFEST).select_related("blob").first()):
        with suppress(OSError):  # a lost file: the check of the season says so
            is_wide = has_prompts(manifest.blob)
    return stored / (4 if is_wide else 2)


@lru_cache
def has_prompts(manifest: Blob) -> bool:
    """Return whether a manifest is of a dataset with prompts. Read once: a blob never changes."""
    return bool(json.loads(storage.read_blob(manifest)).get("format") == FORMAT_WITH_PROMPTS)


def estimate_tokens(track: Track) -> float | None:
    """Return the tokens that the budget reads: of a model of unknown size, the compute-optimal number."""
    budget, flops, size = Budget.parse(track.budget), estimate_flops(track), track.size
    if budget.kind == "tokens" or flops is None:
        return budget.amount if budget.kind == "tokens" else None
    return flops / (6 * size.parameters) if size else math.sqrt(TOKENS_PER_PARAMETER * flops / 6)


def estimate_flops(track: Track) -> float | None:
    """Return the training FLOPs of a track's budget; None if unknown.

    Of a time, at least: on as many of the slowest GPUs of the model in its labels as a run uses. The slowest of all
    where they name no known model.
    """
    budget = Budget.parse(track.budget)
    if budget.kind == "flops":
        return budget.amount
    needs = parse_labels(tuple(track.needs_labels))
    models = (match[2] if (match := MODEL_LABEL.fullmatch(name)) else name for name in needs.names)
    named = [peak for model in models if (peak := find_slowest_flops(model))]
    if budget.kind != "seconds" or not (needs.gpus or named):
        return None
    devices: int = track.config.get("devices", 1)
    return MFU * budget.amount * devices * max(named, default=min(PEAK_FLOPS.values()))


def check_ladder(night: PlannedNight) -> Finding:
    track = night.track
    if not track.ladder:
        return missing("The track has no ladder, so no multipliers and no records. Set it in the admin.")
    baseline = track.season.baseline
    if baseline is None:
        return missing(f"{track.season} has no baseline. The first night's main becomes it.")
    if baseline.state != Entry.State.APPROVED:
        return missing(
            f"The baseline of {track.season} is {baseline.state}: no ladder run starts. Choose another "
            "one in the admin, or approve it again."
        )
    progress = ladder.get_ladder_progress(track)
    if not progress.is_full:
        hours = sum(track.rungs().values()) * track.ladder["seeds"] * track.expected_seconds / 3600
        return missing(
            f"{progress.done} of {progress.wanted} runs are scored. The site queues the others by itself; all of them "
            f"take {hours:,.0f} hours of such a node, beside its nights."
        )
    return ok(f"All {progress.wanted} runs are scored.")


# --- nodes -----------------------------------------------------------------------------------------------------------


def check_node(night: PlannedNight) -> Finding:
    needs = describe_needs(night.training)
    if count := night.count_nodes():
        return ok(f"{count} online {needs}.")
    if not night.slots:
        return missing(f"No node is online; the night needs one {needs}. Lend one, or run manage.py join_token.")
    return missing(
        f"No online node fits; the night needs one {needs}. Missing is one {night.describe_obstacles(night.training)}."
    )


def check_hours(night: PlannedNight) -> Finding:
    """Check that one fitting node is lent long enough from its start on."""
    due, needed = night.due_at or night.now, night.track.expected_seconds
    nodes = Node.objects.filter(pk__in={slot.node_slot.node for slot in night.trainers}).prefetch_related("windows")
    longest = max((get_lent_seconds(node, due) for node in nodes), default=None)
    if longest is None:
        return unknown("No fitting node is online.")
    if longest < needed:
        return missing(
            f"From {format_time(due)} a fitting node is lent for {format_hours(longest)} at most, and the "
            f"night takes {format_hours(needed)}. Extend its hours, or its longest run."
        )
    return ok(f"A fitting node is lent for the {format_hours(needed)} that the night takes.")


def get_lent_seconds(node: Node, at: datetime) -> float:
    """Return how long a node may work on one run from a moment on."""
    left = node_slots.get_seconds_left(node, at)
    return min(math.inf if left is None else left, math.inf if node.max_hours is None else node.max_hours * 3600)


def format_hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


def check_forecast(night: PlannedNight) -> Finding:
    """Forecast the nights and the ladder of the next months on the cards that are online."""
    if not night.trainers:
        return unknown("No fitting node is online.")
    goes_well, found = site_forecast.describe_forecast(night)
    return ok(found) if goes_well else missing(found)


def check_sandbox(night: PlannedNight) -> Finding:
    if not night.trainers:
        return unknown("No fitting node is online.")
    if not any(slot.node_slot.sandboxed for slot in night.trainers):
        return missing(
            "No fitting node has a sandbox: it trains main and traced entries only. Install bubblewrap there "
            "and start the agent again."
        )
    return ok("A fitting node has a sandbox.")


def check_scorer(night: PlannedNight) -> Finding:
    needs = describe_needs(night.scoring)
    if night.find_fitting(night.scoring):
        return ok(f"A node {needs} is online.")
    if not any(slot.node_slot.trusted for slot in night.slots):
        return missing(
            f"No trusted node is online; runs need one {needs}. Run manage.py join_token --trusted, and on that "
            f"machine: dailytrain node --server {settings.SITE_URL} --token TOKEN"
        )
    return missing(
        f"No trusted node fits; runs need one {needs}. Missing is one {night.describe_obstacles(night.scoring)}."
    )


def check_scoring_time(night: PlannedNight) -> Finding:
    """Check every scorer that may get the job: the queue does not choose the fastest."""
    times, limit = list_scorer_times(night), float(night.score_job.limits["wall_seconds"])
    fitting = [time for time in times if time.is_fitting]
    limit_text = f"The limit is {format_hours(limit)}."
    if slow := [time for time in fitting or times if time.seconds is not None and time.seconds > limit]:
        found = ", ".join(f"{time} {format_hours(time.seconds or 0)}" for time in slow)
        return missing(f"Too slow to score the night: {found}. {limit_text} Trust a node with a faster GPU instead.")
    if not fitting:
        return unknown(f"No trusted node that fits is online, or the size of the model is not known. {limit_text}")
    if unclear := [str(time) for time in fitting if time.seconds is None]:
        return unknown(f"The speed of {', '.join(unclear)} is not known. {limit_text}")
    longest = max(time.seconds or 0 for time in fitting)
    return ok(f"Scoring takes about {format_hours(longest)}, computed. {limit_text}")


def check_suite(night: PlannedNight) -> Finding:
    track = night.track
    if not track.suite:
        return missing("The track has no lm-eval tasks. Add a suite in the admin.")
    if lacking := track.season.list_missing_tasks(track.suite):
        return missing(
            f"{track.season} has no evaluation data of {', '.join(lacking)}. Run manage.py prepare_season --season "
            f"'{track.season}', which stores it for scorers."
        )
    return ok(f"{track.season} has the data of {', '.join(track.suite)}.")


# --- the site --------------------------------------------------------------------------------------------------------


def check_limits(night: PlannedNight) -> Finding:
    """Check the site's limits, the node's disk and the GPU's memory against measured or computed sizes."""
    track, uploads = night.track, night.track.upload_limits()
    files = list(get_checkpoint_files(track).values())
    if not files:
        return unknown("The size of a checkpoint is not known before the first run.")
    whole, disk = sum(files), track.training_limits().disk_bytes
    lease_bytes = whole * (checkpoints.NEWEST_KEPT + 3)  # two as evidence, one on its way
    gpu = night.training.capabilities.gpu_memory_bytes
    memory = sum(track.gpu_memory.values()) if gpu else 0
    for size, limit, name in (
        (max(files), uploads.file_bytes if uploads else settings.BLOB_MAX_BYTES, "The limit of an uploaded file"),
        (lease_bytes, uploads.lease_bytes if uploads else settings.LEASE_MAX_BYTES, "The limit of a lease's files"),
        (2 * whole, disk, "disk_bytes in the track's limits"),
        (memory, gpu, "The GPU memory in the track's labels"),
    ):
        if size > limit:
            return missing(f"{name} is {format_size(limit)} and must be {format_size(size)} at least.")
    return ok(f"A checkpoint has {format_size(whole)}.{f' A GPU needs {format_size(memory)}.' if memory else ''}")


def get_checkpoint_files(track: Track) -> dict[str, int]:
    """Return names and sizes of the files of the larger of the track's newest two checkpoints (the final one has no
    optimizer state); before the first one, computed ones."""
    newest = Checkpoint.objects.uploaded().filter(job__run__track=track, job__run__budget=track.budget).order_by("-pk")
    found = [{PurePosixPath(file["path"]).name: file["size"] for file in row.manifest["files"]} for row in newest[:2]]
    if found:
        return max(found, key=lambda files: sum(files.values()))
    size = track.size
    return {WEIGHTS_FILE: size.weights_bytes, OPTIMIZER_FILE: size.optimizer_bytes} if size else {}


def format_size(size: float) -> str:
    return f"{size / GB:,.3g} GB"


def check_storage(night: PlannedNight) -> Finding:
    """Check the storage for the final weights and milestones of thirty nights, without other runs."""
    files, sizes = get_checkpoint_files(night.track), night.track.get_checkpoint_sizes()
    if not files:
        return unknown("The size of a night's files is not known before the first run.")
    weights = sum(size for name, size in files.items() if is_weights_file(name))
    needed = NIGHTS * weights * (1 + sizes.milestones / 2)  # a milestone has half of the bytes
    need = f"{NIGHTS} nights keep {format_size(needed)}; entries and ladders need more"
    if settings.S3_BUCKET:
        return unknown(f"{need}. A bucket has no free space to ask for. Compare this with its quota and your budget.")
    free = shutil.disk_usage(find_existing_folder(Path(default_storage.path("")))).free
    if free < needed:
        return missing(f"{format_size(free)} are free. {need}. Add storage.")
    return ok(f"{format_size(free)} are free. {need}.")


def find_existing_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def check_key(night: PlannedNight) -> Finding:
    path = Path(settings.SIGNING_KEY)
    if not path.is_file() and not Node.objects.exists():
        return unknown(f"The site creates {path} when the first node joins.")
    if not path.is_file():
        return missing(f"{path} does not exist, and nodes know it. Restore it from a backup.")
    return ok("The key that signs orders exists.")


def check_package(night: PlannedNight) -> Finding:
    """Check that a new node can be installed."""
    if settings.PACKAGE_NAME or settings.NODE_IMAGE:
        return unknown(f"Nodes install {settings.PACKAGE_NAME or settings.NODE_IMAGE}, which is not on this site.")
    wheel = find_wheel()
    if wheel is None:
        return missing("The site has no wheel. Run manage.py build_wheel.")
    address = wheel.url.partition("#")[0]
    try:
        status = httpx.head(address, timeout=REQUEST_SECONDS).status_code
    except httpx.HTTPError as error:
        return unknown(f"This machine cannot reach {address} ({error}). Check SITE_URL and the proxy.")
    if status != httpx.codes.OK:
        return missing(f"{address} answers {status}. Check SITE_URL and the proxy.")
    return ok(f"{address} can be downloaded.")


CHECKS: tuple[tuple[str, Callable[[PlannedNight], Finding], bool], ...] = (
    # name, function, whether the night fails without it
    ("Schedule", check_schedule, True),
    ("Background work", check_beat, True),
    ("Worker", check_worker, True),
    ("Earlier night", check_earlier_night, False),
    ("Main", check_main, False),
    ("Season", check_season, True),
    ("Amount of text", check_text, True),
    ("Ladder", check_ladder, False),
    ("Node", check_node, True),
    ("Hours of the node", check_hours, True),
    ("Next 90 days", check_forecast, False),
    ("Sandbox", check_sandbox, False),
    ("Trusted scorer", check_scorer, True),
    ("Scoring time", check_scoring_time, True),
    ("Evaluation data", check_suite, False),
    ("Limits of uploads", check_limits, True),
    ("Storage for 30 nights", check_storage, False),
    ("Signing key", check_key, True),
    ("Package for nodes", check_package, False),
)
REQUESTS = (check_worker, check_package)
"""Checks that wait for an answer: not for public pages."""
