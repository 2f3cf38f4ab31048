"""The first season and track of a new site. A change of these numbers needs a new season."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from leaderboard import runs
from leaderboard.models import Entry, Run, Season, Track
from leaderboard.models.seasons import MANIFEST, TOKENIZER, SeasonFile, build_caps
from leaderboard.schedule import nightly
from leaderboard.submissions import intake
from scheduler import storage
from scheduler.models import SITE_ACTOR, Event
from trainer.protocol.files import hash_file

SEASON: dict[str, Any] = {
    "corpus": "python-docs",  # part of the package, so the dataset's hash is the same on every machine
    "tokenizer": "bpe:4096",
    "limit_bytes": None,
    "test_tokens": 8192,  # a score's time is mostly its look-ahead check, a pass for each fourth token
    "caps": {**build_caps(), "parameters": 100_000_000, "stored_bytes": 400_000_000},
}
SEASON_NAME = "Season 0"
TRACK: dict[str, Any] = {
    "name": "Half a minute on two cores",
    "description": "Small enough for any laptop: Python's documentation, learned in about half a minute. Gains at this "
    "size shrink with scale: read it as a rehearsal.",
    "budget": "2.5e12flops",
    "expected_seconds": 30.0,
    "config": {
        "threads": 2,
        "model": {"depth": 2},
        "train": {"sequence_length": 256, "batch": 8, "precision": "fp32", "compile": False},
    },
    "ladder": {"rungs": [1 / 4, 1 / 2, 1, 2], "seeds": 3},  # 11 full budgets: about six minutes of two cores
    "seeds": 3,
    "suite": ["blimp_sample"],  # the one that needs no network
    "suite_limit": 20,
    "limits": {"memory_bytes": 4 * 2**30, "disk_bytes": 2 * 2**30},
    # For a laptop under other load: short probes, and tolerances that only large changes exceed.
    "probe_seconds": 1.0,
    "kappa_tolerance": 0.15,
    "drift_tolerance": 0.1,
    "is_default": True,
    "nightly": True,
}
TRACK_SLUG = "small"
FIRST_STATION_SLUG = "seconds"
FIRST_STATION: dict[str, Any] = {
    **TRACK,
    "name": "A few seconds on two cores",
    "description": "Where entries start: those above 1 with confidence move up to half a minute.",
    "budget": "6e11flops",
    "expected_seconds": 7.0,
    "ladder": {"rungs": [1 / 2, 1, 2], "seeds": 3},
    "approval": Track.Approval.ANYONE,
    "is_default": False,
    "nightly": False,
    "position": 1,
}
MORE_ARCHITECTURES = {
    # architecture: title, hypothesis
    "smear": ("Smeared keys", "A key mixed with the one before it finds induction patterns one block earlier."),
    "litgpt": ("Pythia, by litgpt", "How far has the baseline come from GPT-NeoX as Pythia trained it?"),
    "nanogpt": ("GPT-2, as nanoGPT writes it", "How far has the baseline come from GPT-2?"),
}


class SetupError(RuntimeError):
    """The site cannot be set up; the operator reads the message."""


def ensure_season() -> Season:
    """Return the current season; create the first one on a new site."""
    season = Season.objects.current()
    if season is None:
        season, _ = Season.objects.get_or_create(name=SEASON_NAME, defaults=SEASON)
    return season


def prepare_season(season: Season, *, show_progress: bool = True) -> bool:
    """Build the season's dataset in a subprocess, store its files and pin its hash; return whether the hash is new.

    `show_progress`: in the terminal. Builds nothing if the files are stored. Raises SetupError if the hash differs from
    the pinned one: then this machine's corpus is another one.
    """
    if season.is_prepared and season.is_stored:
        runs.queue_waiting(season)
        return False
    dataset_hash, vocabulary_size, reserved_tokens, folder = build_dataset(season, show_progress)
    if season.dataset_hash and dataset_hash != season.dataset_hash:
        raise SetupError(
            f"{season.corpus} gives dataset {dataset_hash[:12]} here, but {season} is pinned to "
            f"{season.dataset_hash[:12]}. The corpus or the release has changed since: restore it, or create a new "
            "season."
        )
    store_dataset(season, folder)
    with transaction.atomic():
        unpinned = Season.objects.filter(pk=season.pk, dataset_hash="")
        pinned = unpinned.update(
            dataset_hash=dataset_hash, vocabulary_size=vocabulary_size, reserved_tokens=reserved_tokens
        )
        season.refresh_from_db()
        if pinned:
            Event.record(SITE_ACTOR, season, f"Dataset prepared and pinned: {dataset_hash[:12]}.")
    runs.queue_waiting(season)
    return pinned == 1


def store_dataset(season: Season, folder: Path) -> None:
    """Put the dataset's files, which this machine prepared, into the storage for nodes to download. Idempotent."""
    splits = json.loads((folder / MANIFEST).read_bytes())["splits"].values()
    files = {shard["path"]: shard["sha256"] for split in splits for shard in split["shards"]}
    files |= {name: hash_file(folder / name) for name in (TOKENIZER, MANIFEST)}  # the manifest comes last
    stored = dict(season.files.filter(kind=SeasonFile.Kind.DATASET).values_list("path", "blob"))
    for path in files:
        if stored.get(path) != files[path]:
            with (folder / path).open("rb") as file:
                blob = storage.store_stream(files[path], file.read, limit=(folder / path).stat().st_size)
            season.files.update_or_create(kind=SeasonFile.Kind.DATASET, path=path, defaults={"blob": blob})


def build_dataset(season: Season, show_progress: bool) -> tuple[str, int, int, Path]:
    """Return hash, vocabulary size, tokens of the test split and folder of the season's dataset.

    The subprocess keeps tokenizers out of the site. It may take hours, and continues where an earlier one ended.
    """
    command = [sys.executable, "-m", "trainer.cli", "prepare", "--json"]
    command += ["--corpus", season.corpus, "--tokenizer", season.tokenizer]
    if season.limit_bytes is not None:
        command += ["--limit-bytes", str(season.limit_bytes)]
    if not show_progress:
        command.append("--quiet")
    stderr = None if show_progress else subprocess.PIPE
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or "").strip().splitlines()
        raise SetupError(lines[-1] if lines else f"The dataset of {season} could not be prepared (see above).")
    dataset = json.loads(done.stdout)
    dataset_hash = str(dataset["hash"])
    assert re.fullmatch("[0-9a-f]{64}", dataset_hash), dataset_hash
    reserved_tokens = int(dataset["splits"]["test"]["tokens"])
    return dataset_hash, int(dataset["vocabulary_size"]), reserved_tokens, Path(dataset["path"])


def set_up_site(*, main_only: bool = False) -> Track:
    """Create the first track and queue its first runs: main, then other architectures. Idempotent."""
    track, _ = Track.objects.get_or_create(slug=TRACK_SLUG, defaults={**TRACK, "season": ensure_season()})
    if not track.nights.exists():
        nightly.start_nightly_run(track, timezone.now())
        if not Entry.objects.filter(track=track, kind=Entry.Kind.MAIN).exists():
            night = track.nights.first()
            raise SetupError(night.sentence if night else "No nightly run has started.")
    if not main_only:
        enter_architectures(track)
    return track


def enter_after_first_run() -> bool:
    """Enter the other architectures once a run is over, so that main's first score does not wait for their smoke tests.

    Return whether they are entered.
    """
    track = Track.objects.select_related("season").get(slug=TRACK_SLUG)
    if track.season.name != SEASON_NAME:
        return True  # the demo, or a site that has moved on
    if not Run.objects.filter(track=track).exclude(state__in=Run.UNFINISHED).exists():
        return False
    enter_architectures(track)
    return True


def enter_architectures(track: Track) -> None:
    """Create the first station, whose ladder needs main's entry, and enter what is on main."""
    fields = {**FIRST_STATION, "season": track.season}
    station, created = Track.objects.get_or_create(slug=FIRST_STATION_SLUG, defaults=fields)
    if created:
        Track.objects.filter(pk=track.pk).update(qualifier=station)
    for architecture in MORE_ARCHITECTURES:
        enter_architecture(track, architecture)


def enter_architecture(track: Track, architecture: str) -> None:
    baseline = Season.objects.select_related("baseline").get(pk=track.season_id).baseline
    if baseline is None or Entry.objects.filter(track=track, architecture=architecture).exists():
        return
    title, hypothesis = MORE_ARCHITECTURES[architecture]
    entry = intake.submit_entry(
        settings.MAIN_REPOSITORY, baseline.sha, title, architecture, track, hypothesis=hypothesis, skips_stations=True
    )
    intake.approve_entry(
        entry, entry.sha, None, message="Approved by the site: it is part of main, which was reviewed."
    )
