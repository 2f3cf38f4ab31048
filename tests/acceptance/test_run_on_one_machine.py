"""`make run`: everything starts, tonight's train of main runs, Ctrl-C leaves nothing behind, and it goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live_site import LiveSite, make_repository
from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.slow


@pytest.mark.timeout(3600)
def test_tonights_train_starts_stops_cleanly_and_goes_on(tmp_path: Path) -> None:
    site = LiveSite(tmp_path, f"sqlite:///{tmp_path}/site.sqlite3")
    site.environment.pop("REDIS_URL")  # the embedded one is part of it
    site.repository.mkdir()
    make_repository(site.repository)
    try:
        start(site)
        site.wait(lambda: under_way(site, 1), "tonight's train to leave")
        titles = {run["title"]: run["state"] for run in site.json("runs")["items"] if run["purpose"] != "ladder"}
        assert sorted(titles.values()) == ["queued", "queued", "queued", "training"], titles

        another = [sys.executable, "manage.py", "run", "--port", str(site.port)]
        refused = subprocess.run(another, cwd=REPOSITORY, env=site.environment, capture_output=True, text=True)
        assert refused.returncode == 1
        assert "Another `run` uses" in refused.stderr

        assert interrupt(site) == 0
        assert site.left_over() == []

        start(site)
        site.wait(lambda: under_way(site, 2), "the train to go on")
        page = site.get("/runs/1/")
        assert page is not None
        assert "Resumes from step" in page.text
        assert interrupt(site) == 0
        assert site.left_over() == []
    finally:
        site.stop_all()


def start(site: LiveSite) -> None:
    site.start("run", sys.executable, "manage.py", "run", "--port", str(site.port))


def under_way(site: LiveSite, step: int) -> bool:
    run = site.json("runs/1")
    return bool(run) and run["state"] == "training" and run["step"] >= step


def interrupt(site: LiveSite) -> int:
    """Press Ctrl-C and return the exit code."""
    process = site.processes.pop("run")
    process.send_signal(signal.SIGINT)
    return process.wait(WAIT_SECONDS)
