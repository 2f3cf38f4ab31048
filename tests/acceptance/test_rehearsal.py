"""`manage.py rehearse_night`: every template's track on this machine, and the night up to its record."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dailytrain.rehearsal.scaled_tracks import scale_fields
from leaderboard.schedule.track_templates import TEMPLATES
from tests.support.fork_server import ForkServer
from tests.support.live_site import list_processes, make_repository
from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS
from trainer.accounting.budget import Budget

pytestmark = [pytest.mark.processes, pytest.mark.slow]
NIGHT = "night-h100"
SCALE = 1e-9
IGNORED_FIELDS = {
    "name", "description", "position", "nightly", "monthly", "expected_seconds", "needs_labels", "needs_memory_bytes",
    "limits", "ladder", "suite", "suite_limit",
}  # fmt: skip
"""Fields of a track that change nothing in training and scoring `main` at a small scale; tests/site/test_rehearsal.py
checks labels, hardware and limits of every template."""


def list_distinct_templates() -> list[str]:
    """Return the templates whose scaled tracks differ in their jobs from each other and from the night's."""
    distinct: dict[str, str] = {}
    for name, template in TEMPLATES.items():
        scaled = scale_fields(template, SCALE, 512)
        config = {key: value for key, value in scaled["config"].items() if key != "checkpoint_every"}
        fields = {key: value for key, value in scaled.items() if key not in IGNORED_FIELDS}
        fields |= {"config": config, "budget": Budget.parse(scaled["budget"]).kind}
        distinct.setdefault(json.dumps(fields, sort_keys=True), name)
    return [name for name in distinct.values() if name != NIGHT]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own folder: a socket's path may have about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
        yield Path(name)


@pytest.fixture
def environment(tmp_path: Path, fork_server: ForkServer) -> dict[str, str]:
    """Return a site's environment whose main is this checkout's trainer, and whose nodes fork their jobs."""
    repository = tmp_path / "repository"
    repository.mkdir()
    make_repository(repository)
    home = {"DAILYTRAIN_HOME": str(tmp_path / "production"), "MAIN_REPOSITORY": str(repository)}
    return {**os.environ, **home, "COLUMNS": "160", **fork_server.environment}


def start_rehearsal(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "manage.py", "rehearse_night", *arguments, "--home", str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.STDOUT, stdout=pipe, text=True)


@pytest.mark.timeout(5400)
def test_night_is_rehearsed_up_to_the_decision_about_a_record(
    folder: Path, tmp_path: Path, environment: dict[str, str], fork_server: ForkServer
) -> None:
    rehearsal = start_rehearsal(folder, environment, NIGHT, "--scale", "1e-5")
    printed, _ = rehearsal.communicate()
    assert rehearsal.returncode == 0, printed
    (row,) = re.findall(r"A narrower model\s*│(.+)│", printed)
    loss, multiplier, interval, _, trust = (cell.strip() for cell in row.split("│"))
    assert 0.5 < float(loss) < 8
    assert float(multiplier) > 1
    assert interval
    (accuracy,) = re.findall(r"blimp_sample/acc (\S+?),", printed)
    assert 0 < float(accuracy) < 1
    (centered,) = re.findall(r"CORE-style score: (\S+) ±", printed)
    assert -1 < float(centered) < 1
    *_, decision = re.findall(r"A narrower model: (.+)", printed)
    # Seeds are drawn, so the noise of small runs may deny the entry its record.
    assert trust == ("record" if decision.startswith("A record:") else "replicated"), printed
    assert "15 of 15 runs are scored" in printed
    logs = {path.name for path in (folder / "log").iterdir()}
    assert {"web.log", "worker.log", "node-first.log", "node-second.log", "run-1.log"} <= logs
    assert list_processes(folder) == {}
    assert fork_server.list_forked() == []
    with contextlib.closing(sqlite3.connect(tmp_path / "production" / "db.sqlite3")) as own:
        assert own.execute("SELECT name FROM sqlite_master").fetchall() == [], "the site's own database was only read"


@pytest.mark.timeout(3600)
def test_each_distinct_template_trains_and_scores_main(folder: Path, environment: dict[str, str]) -> None:
    templates = list_distinct_templates()
    assert {"playground-h100", "playground-16gb", "large-4x80gb", "long-run-8x80gb"} < {*templates}
    rehearsal = start_rehearsal(folder, environment, *templates, "--main-only", "--scale", f"{SCALE}")
    printed, _ = rehearsal.communicate()
    assert rehearsal.returncode == 0, printed
    for name in templates:
        assert re.search(rf"{re.escape(TEMPLATES[name]['name'])} at a small scale", printed), printed
    assert len(re.findall(r"│ main, .+│ scored", printed)) == len(templates), printed


def test_interrupted_rehearsal_stops_its_processes(folder: Path, environment: dict[str, str]) -> None:
    rehearsal = start_rehearsal(folder, environment, NIGHT)
    deadline = time.monotonic() + WAIT_SECONDS
    while not (folder / "log" / "web.log").exists():
        assert rehearsal.poll() is None, rehearsal.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    rehearsal.send_signal(signal.SIGINT)
    printed, _ = rehearsal.communicate()
    assert rehearsal.returncode == 1
    assert "Stopped." in printed
    assert list_processes(folder) == {}
