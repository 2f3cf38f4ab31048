"""The steps of a rehearsal, from an empty site to a record on the board. Each ends, or raises StepError."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from dailytrain.local_site import LocalSite, build_node_process, get_log_path
from dailytrain.rehearsal.full_tracks import FullTrack
from dailytrain.rehearsal.node import ReportedHardware
from dailytrain.rehearsal.scaled_tracks import SUITE, build_track
from leaderboard import run_logs
from leaderboard.models import Entry, Run, Season, Track
from leaderboard.rankings import confirmations, standings_store
from leaderboard.schedule import evaluation_data, first_season, ladder, next_season, nightly
from leaderboard.submissions import intake
from scheduler import storage
from scheduler.matching import MODEL_LABEL, LabelNeeds, parse_labels
from scheduler.node_tokens import create_join_token
from trainer import protocol

CORPUS, TOKENIZER, LIMIT_BYTES = "python-docs", "bpe:512", 2**20
TEST_TOKENS = 4096
"""Scored, of the 15,757 of its test split: scores of models this small take longer than their training."""
NODES = ("first", "second")
"""Two, since a node that trained an entry may not confirm it."""
NAMED_BY = "rehearsal"
BEAT_SECONDS = 2
HURRIED_TASKS = ("store_configurations", "fill_ladders", "update_confirmations")
SILENT_SECONDS = 600
"""Seconds without an event after which the rehearsal fails as stuck."""
ENTRY_TITLE, ENTRY_ARCHITECTURE = "A narrower model", "smear"
"""Another architecture than main's: a commit has one entry for each."""
ENTRY_HYPOTHESIS = "At so small a scale the model is too large: fewer weights, more steps."
ENTRY_CONFIG = {"model": {"width": 88}}
"""Width of the entry, instead of 128. It beats the baseline. With 80 or less it reaches the loss of the top rung."""


class StepError(Exception):
    """A step failed. The message says why."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


class StoppedError(Exception):
    """The user stopped the rehearsal."""


@dataclass
class Rehearsal:
    site: LocalSite
    full_tracks: list[FullTrack]
    scale: float
    main_only: bool = False
    """Train and score the baseline once on each track: no ladder, no entry."""
    is_on_gpu: bool = False
    """One node runs the jobs on this machine's GPUs, instead of two on CPU cores."""
    step: str = ""

    def run(self) -> list[Track]:
        """Do all steps and return the tracks."""
        with self.name_step("site"):
            self.site.prepare_database()
            # Start the tasks that runs wait for more often: runs take seconds here, not hours.
            interval, _ = IntervalSchedule.objects.get_or_create(every=BEAT_SECONDS, period=IntervalSchedule.SECONDS)
            names = [f"leaderboard.tasks.{name}" for name in HURRIED_TASKS]
            PeriodicTask.objects.filter(task__in=names).update(interval=interval)
        with self.name_step("season"):
            season = self.create_season()
        with self.name_step("track"):
            tracks = self.create_tracks(season)
        with self.name_step("nodes"):
            self.site.start_services()
            self.start_nodes(tracks)
        self.run_nights(tracks)
        for track in tracks:
            standings_store.recompute_standings(track)
        return tracks

    def run_nights(self, tracks: list[Track]) -> None:
        with self.name_step("night"):
            start_runs(tracks)
            self.wait_for(lambda: all(Run.objects.on_board(track).exists() for track in tracks))
        if self.main_only:
            return
        with self.name_step("ladder"):
            self.wait_for(lambda: all(map(is_ladder_full, tracks)))
        with self.name_step("entry"):
            entries = [submit_entry(track) for track in tracks]
            self.wait_for(lambda: not Run.objects.filter(entry__in=entries, state__in=Run.UNFINISHED).exists())
        with self.name_step("record"):
            ranked = [entry for entry in entries if entry.track.ladder]
            for entry in ranked:  # named as by a maintainer: one run may be too few for the site to name it
                confirmations.queue_confirmation_runs(entry, actor=NAMED_BY)
            undecided = Entry.objects.filter(pk__in=[entry.pk for entry in ranked], confirmations=None)
            self.wait_for(lambda: not undecided.exists())

    @contextmanager
    def name_step(self, name: str) -> Iterator[None]:
        """Name the step that fails, and turn errors of the site's functions into StepErrors."""
        if self.site.stopping.is_set():
            raise StoppedError
        self.step = name
        self.site.console.rule(f"[bold]{name}[/bold]", align="left")
        started_at = time.monotonic()
        try:
            yield
        except (CommandError, RuntimeError, ValueError, ValidationError) as error:
            if self.site.stopping.is_set():  # Ctrl-C reaches the processes of a step too
                raise StoppedError from error
            raise StepError("; ".join(getattr(error, "messages", [str(error)]))) from error
        self.site.print_message(f"{name}: done in {time.monotonic() - started_at:.0f} s")

    # --- steps ---

    def create_season(self) -> Season:
        season = next_season.create_season("Rehearsal", CORPUS, TOKENIZER, LIMIT_BYTES)
        season.test_tokens = TEST_TOKENS
        season.save(update_fields=["test_tokens"])
        first_season.prepare_season(season)
        next_season.begin_season(season)
        self.site.print_message(f"{season.corpus}, {LIMIT_BYTES >> 20} MiB; {season.tokenizer}")
        return season

    def create_tracks(self, season: Season) -> list[Track]:
        tracks = []
        for full in self.full_tracks:
            track = build_track(full, season, self.scale, has_ladder=not self.main_only, is_on_gpu=self.is_on_gpu)
            track.full_clean()
            track.save()
            tracks.append(track)
            self.site.print_message(f"{track.slug}: {track.budget}, {track.config}")
        evaluation_data.store_evaluation_data(season, SUITE)
        return tracks

    def start_nodes(self, tracks: list[Track]) -> None:
        hardware = describe_hardware(tracks)
        environment = {"CUDA_VISIBLE_DEVICES": ""}
        if self.is_on_gpu:
            labels = tuple(label for track in tracks for label in track.needs_labels)
            hardware, environment = hardware.model_copy(update={"gpus": None, "labels": labels}), {}
        for name in NODES[:1] if self.is_on_gpu else NODES:
            token = create_join_token(trusted=True)
            node = build_node_process(
                name, self.site.url, token, "--hardware", hardware.model_dump_json(),
                home=f"node-{name}", module="dailytrain.rehearsal.node", environment=environment, stop_seconds=5,
            )  # fmt: skip
            self.site.start(node)

    # --- waiting ---

    def wait_for(self, is_done: Callable[[], bool]) -> None:
        """Print events until it is done. Raises StepError if a run or a process fails or nothing happens any more."""
        last, steps = time.monotonic(), read_steps()
        while not is_done():
            if self.site.stopping.wait(1):
                raise StoppedError
            if self.site.print_events() or steps != (steps := read_steps()):
                last = time.monotonic()
            if exited := self.site.list_exited():
                raise StepError(f"{exited[0].name} exited:\n{exited[0].read_last_lines()}", exited[0].log)
            if failed := Run.objects.failed().first():
                raise StepError(f"Run {failed.pk} {failed.state}: {failed.reason}", write_log(failed))
            if time.monotonic() - last > SILENT_SECONDS:
                raise StepError(f"Nothing has happened for {SILENT_SECONDS} s. {describe_waiting()}")
        self.site.print_events()


def read_steps() -> list[int]:
    """Return how far each run has trained."""
    return list(Run.objects.order_by("pk").values_list("step", flat=True))


def start_runs(tracks: list[Track]) -> None:
    """Start the nights, at least one, and queue a run of the baseline on the other tracks."""
    now = timezone.now()
    if not nightly.start_nightly_runs(now):
        nightly.start_night(tracks[0], now.date(), nightly.read_main())
    release = storage.store_release()
    for track in Track.objects.filter(nights=None).select_related("season__baseline"):
        ladder.queue_baseline_run(track, release)


def is_ladder_full(track: Track) -> bool:
    fresh = Track.objects.select_related("season").get(pk=track.pk)
    return not fresh.ladder or ladder.get_ladder_progress(fresh).is_full


def submit_entry(track: Track) -> Entry:
    """Submit and approve an architecture of main with a smaller width."""
    track.season.refresh_from_db()
    baseline = track.season.baseline
    assert baseline is not None, "pinned with the night"
    entry = intake.submit_entry(
        settings.MAIN_REPOSITORY, baseline.sha, ENTRY_TITLE, ENTRY_ARCHITECTURE, track,
        hypothesis=ENTRY_HYPOTHESIS, config=ENTRY_CONFIG, skips_stations=True,
    )  # fmt: skip
    intake.approve_entry(entry, entry.sha, None, message="Approved for the rehearsal.")
    return entry


# --- hardware --------------------------------------------------------------------------------------------------------


def describe_hardware(tracks: list[Track]) -> ReportedHardware:
    """Return hardware that fits the labels and needs of all these tracks."""
    needs = [parse_labels(tuple(track.needs_labels)) for track in tracks]
    memory = max(need.gpu_memory_bytes for need in needs)
    names = [name for need in needs for name in list_gpu_names(need)]
    names += ["GPU"] * (max(need.gpus for need in needs) - len(names))
    gpus = (
        protocol.Gpu(name=name, memory_bytes=memory, uuid=f"GPU-rehearsal-{number}")
        for number, name in enumerate(names)
    )
    return ReportedHardware(
        gpus=tuple(gpus),
        memory_bytes=max(track.needs_memory_bytes for track in tracks),
        disk_free_bytes=max(need.disk_bytes for need in needs),
        labels=tuple(name for need in needs for name in need.names if not MODEL_LABEL.fullmatch(name)),
    )


def list_gpu_names(need: LabelNeeds) -> list[str]:
    """Return names of GPUs from which a node derives the labels that name a model, such as 1xh100."""
    models = [match for name in need.names if (match := MODEL_LABEL.fullmatch(name))]
    return [f"NVIDIA {match[2].upper()}" for match in models for _ in range(int(match[1]))]


# --- failures --------------------------------------------------------------------------------------------------------


def write_log(run: Run) -> Path:
    """Write the log of a run's training into the folder of logs and return its path."""
    path = get_log_path(f"run-{run.pk}")
    path.write_text(run_logs.get_full_text(run))
    return path


def describe_waiting() -> str:
    """Return why the waiting runs do not start."""
    waiting = Run.objects.filter(state__in=Run.NOT_STARTED).select_related("job")
    return " ".join(f"Run {run.pk}: {run.reason}{nightly.describe_missing_node(run)}" for run in waiting[:3])
