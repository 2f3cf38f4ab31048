"""From a commit to a row on the board. Trainer, agent and web server are each killed once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_site import LiveSite, live_site, make_repository, read_losses, train_uninterrupted

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.services, pytest.mark.check]

BUDGET = "480steps"  # more than it trains while the pages that the test reads are late


def read_run(site: LiveSite) -> dict[str, Any] | None:
    page = site.get_json("runs")
    return page["items"][0] if page and page["items"] else None


def read_step(site: LiveSite, minimum: int) -> int | None:
    run = read_run(site)
    return run["step"] if run and run["state"] == "training" and run["step"] >= minimum else None


def count_attempts(site: LiveSite) -> int:
    return int(site.call("runs.count_train_leases"))


def read_config(site: LiveSite, run: int) -> dict[str, Any]:
    """Return the configuration in the run's job order."""
    config: dict[str, Any] = site.call("runs.read_run_config", run=run)
    return config


def read_ended_run(site: LiveSite) -> dict[str, Any] | None:
    run = read_run(site)
    return run if run and run["state"] in ("finished", "failed") else None


def read_board(site: LiveSite, title: str) -> Any:
    page = site.get("/")
    return page if page is not None and title in page.text else None


@pytest.mark.timeout(3600)
def test_entry_after_three_kills_is_trained_and_scored_and_on_the_board(tmp_path: Path) -> None:
    with live_site(tmp_path, BUDGET) as site:
        sha = make_repository(site.repository)
        site.start_web()
        site.start_worker()
        site.start_node(site.manage("join_token", "--trusted").split()[-1])

        # The entry comes from the command, without a webhook, and is approved in the admin.
        site.manage("submit_entry", str(site.repository), sha, "--title", "An idea", "--arch", "idea")
        entry = site.get_json("entries")["items"][0]
        assert entry["state"] == "proposed"
        assert read_run(site) is None, "a run exists before a maintainer has approved the entry"
        site.approve(entry["id"], sha)

        # Kill the trainer: the next attempt resumes from the last checkpoint.
        step = site.wait(lambda: read_step(site, 40), "training to start")
        for process in site.list_trainers():
            os.kill(process, signal.SIGKILL)
        # Kill the agent: its sandbox ends with it, and a new agent continues the run.
        step = site.wait(lambda: read_step(site, step + 30), "training to continue after the trainer was killed")
        site.kill("node")
        site.wait(lambda: not site.list_trainers(), "the sandbox to end with its agent")
        site.start_node()
        # Kill the web server: agent and trainer continue without it.
        site.wait(lambda: read_step(site, step + 30), "training to continue after the agent was killed")
        site.kill("web")
        site.start_web()

        run = site.wait(lambda: read_ended_run(site), "the run to end")
        assert run["state"] == "finished", f"{run['reason']}\n{site.read_log_tails()}"

        # The run is scored by the trusted node and on the board, with its commit and sample text.
        detail = site.get_json(f"runs/{run['id']}")
        assert detail["trust"] == "scored"
        assert 0.5 < detail["bits_per_byte"] < 8
        assert {score["name"] for score in detail["scores"]} >= {"bits_per_byte", "nats_per_token"}
        assert [row["id"] for row in site.get_json("tracks/tiny/board")] == [run["id"]]
        board = site.wait(lambda: read_board(site, "An idea"), "the standings to be recomputed")
        assert sha[:7] in board.text
        assert f"{detail['bits_per_byte']:.4f}" in board.text
        assert site.get_json(f"runs/{run['id']}/samples")

        # After three attempts the losses equal those of an uninterrupted run in every digit.
        assert count_attempts(site) >= 3
        uninterrupted = train_uninterrupted(site, read_config(site, run["id"]), sha)
        assert read_losses(site, run["id"]) == uninterrupted
        assert len(uninterrupted["train"]) > 20

        # No process and no file is left.
        site.stop_all()
        assert site.list_processes() == []
        assert list((tmp_path / "node" / "work").iterdir()) == []
