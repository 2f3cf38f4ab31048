"""A notebook in two parts with a live site, a real agent, bubblewrap, papermill and a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.test import Client

from leaderboard.models import Run, Season, Track
from leaderboard.submissions import intake
from scheduler import node_tokens
from tests.leaderboard.conftest import Repository
from tests.support.waits import WAIT_SECONDS
from trainer.sandbox import get_driver

pytestmark = pytest.mark.processes

FIRST = (
    "from pathlib import Path\nPath('model/weights.txt').write_text('one')",
    "import socket\ntry:\n    socket.create_connection(('1.1.1.1', 80), 2)\nexcept OSError:\n    print('no network')",
)
SECOND = ("weights = open('model/weights.txt').read() + ' and two'", "open('model/weights.txt', 'w').write(weights)")


def build_notebook(*sources: str) -> str:
    cells = [
        {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        for source in sources
    ]
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells})


def wait_for_run(run: Run) -> Run:
    deadline = time.monotonic() + WAIT_SECONDS
    while not run.is_over and time.monotonic() < deadline:
        time.sleep(0.2)
        run = Run.objects.get(pk=run.pk)
    return run


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_notebook_parts_on_real_node_run_and_are_shown(
    main_repository: Repository, track: Track, live_server: Any, client: Client, tmp_path: Path
) -> None:
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    Track.objects.update(kind="community", nightly=False, budget="2m", expected_seconds=120)
    track = Track.objects.select_related("season").get()
    main_repository.git("checkout", "--quiet", "-b", "idea")
    parts = {
        "notebooks/idea-part1.ipynb": build_notebook(*FIRST),
        "notebooks/idea-part2.ipynb": build_notebook(*SECOND),
    }
    main_repository.commit("An idea in two parts", dict(parts))
    entry = intake.submit_entry(str(main_repository.path), "idea", "An idea", "", track)
    (run,) = intake.approve_entry(entry, entry.sha, None)
    Season.objects.update(dataset_hash="")  # these notebooks need no dataset
    command = [sys.executable, "-m", "trainer.cli", "node", "--server", live_server.url, "--sandbox", "bubblewrap"]
    arguments = ["--token", node_tokens.create_join_token(), "--home", str(tmp_path / "agent"), "--name", "cellar"]
    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [*command, *arguments], cwd=configured.BASE_DIR, env={**os.environ}, stdout=log, stderr=log
        )
        try:
            run = wait_for_run(run)
        finally:
            agent.terminate()
            agent.wait(WAIT_SECONDS)
    assert run.state == "finished", (run.state, run.reason, (tmp_path / "agent.log").read_text()[-2000:])
    assert "no network" in client.get(run.get_absolute_url()).content.decode()
    download = client.get(f"/runs/{run.pk}/parts/2/model/weights.txt")
    assert b"".join(download) == b"one and two"  # type: ignore[arg-type]
