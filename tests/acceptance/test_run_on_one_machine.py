"""`make run`: starts all processes, trains main, stops without leftovers on Ctrl-C, and resumes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live_site import LiveSite, make_repository
from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.timeout(3600)
def test_make_run_after_interrupt_leaves_no_process_and_resumes(tmp_path: Path) -> None:
    site = LiveSite(tmp_path, f"sqlite:///{tmp_path}/site.sqlite3")
    site.environment.pop("REDIS_URL")  # `manage.py run` starts an embedded one
    site.repository.mkdir()
    make_repository(site.repository)
    try:
        start(site)
        site.wait(lambda: is_training(site, 1), "the nightly run to start")
        titles = {run["title"]: run["state"] for run in site.get_json("runs")["items"] if run["purpose"] != "ladder"}
        assert list(titles.values()) == ["training"], "other entries come after main's first score"

        another = [sys.executable, "manage.py", "run", "--port", str(site.port)]
        refused = subprocess.run(another, cwd=REPOSITORY, env=site.environment, capture_output=True, text=True)
        assert refused.returncode == 1
        assert "Another `run` uses" in refused.stderr

        assert interrupt(site) == 0
        assert site.list_processes() == []

        start(site)
        site.wait(lambda: is_training(site, 2), "the run to resume")
        site.wait(lambda: is_resumed(site), "the run's page to say so")
        assert interrupt(site) == 0
        assert site.list_processes() == []
    finally:
        site.stop_all()


def start(site: LiveSite) -> None:
    site.start("run", sys.executable, "manage.py", "run", "--port", str(site.port))


def is_training(site: LiveSite, step: int) -> bool:
    run = site.get_json("runs/1")
    return bool(run) and run["state"] == "training" and run["step"] >= step


def is_resumed(site: LiveSite) -> bool:
    page = site.get("/runs/1/")
    return page is not None and "Resumes from step" in page.text


def interrupt(site: LiveSite) -> int:
    """Press Ctrl-C and return the exit code."""
    process = site.processes.pop("run")
    process.send_signal(signal.SIGINT)
    return process.wait(WAIT_SECONDS)
