"""Evaluation data of a season: files of its benchmark tasks, stored once for scorers, which download them by hash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from django.conf import settings

from leaderboard.models import Season, SeasonFile, Track
from leaderboard.schedule.first_season import TRACK
from scheduler import storage
from trainer.protocol.files import hash_file
from trainer.scoring import benchmark_tasks

FOLDER_HELP = "a folder with the evaluation data, for a site without a network; default: download it"


def list_tasks(season: Season) -> list[str]:
    """Return the benchmark tasks of the season's tracks; of the first track before there is one."""
    suites = [track.suite for track in Track.objects.filter(season=season)] or [TRACK["suite"]]
    return sorted({task for suite in suites for task in suite})


def store_evaluation_data(season: Season, tasks: Iterable[str], folder: Path | None = None) -> list[str]:
    """Store the files of these tasks that the season lacks; return the tasks without data.

    A stored file is never replaced. `folder`: of files that do not ship with this repository; by default they are
    downloaded from their sources.
    """
    missing = season.list_missing_tasks(list(tasks))
    if folder is None:
        folder = settings.HOME / "evaluation"
        fetch(missing, folder)
    stored = {file.path for file in season.get_evaluation_files(missing)}
    available, lacking = benchmark_tasks.split_by_available_data(missing, folder)
    for path in sorted({path for task in available for path in benchmark_tasks.list_files(task)} - stored):
        store_file(season, path, folder)
    return lacking


def fetch(tasks: list[str], folder: Path) -> None:
    """Download what the tasks lack in a subprocess, which prints what it cannot get: the site imports no datasets."""
    if benchmark_tasks.split_by_available_data(tasks, folder)[1]:
        command = [sys.executable, "-m", "trainer.cli", "benchmarks", str(folder), "--suite", ",".join(tasks)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)


def store_file(season: Season, path: str, folder: Path | None) -> None:
    source = benchmark_tasks.find_file(path, folder)
    assert source is not None, f"checked before: {path}"
    with source.open("rb") as file:
        blob = storage.store_stream(hash_file(source), file.read, limit=source.stat().st_size)
    season.files.create(kind=SeasonFile.Kind.EVALUATION, path=path, blob=blob)
