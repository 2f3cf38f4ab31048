"""From a commit to a row on the board, with everything killed once on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_site import LiveSite, curve, live_site, make_repository, uninterrupted

pytestmark = [pytest.mark.slow, pytest.mark.services]

BUDGET = "240steps"


def run_of(site: LiveSite) -> dict[str, Any] | None:
    page = site.json("runs")
    return page["items"][0] if page and page["items"] else None


def step_beyond(site: LiveSite, step: int) -> int | None:
    run = run_of(site)
    return run["step"] if run and run["state"] == "training" and run["step"] >= step else None


def attempts(site: LiveSite) -> int:
    return int(site.call("runs.count_train_leases"))


def configuration(site: LiveSite, run: int) -> dict[str, Any]:
    """Return the configuration that the nodes were given."""
    config: dict[str, Any] = site.call("runs.read_run_config", run=run)
    return config


def ended(site: LiveSite) -> dict[str, Any] | None:
    run = run_of(site)
    return run if run and run["state"] in ("finished", "failed") else None


def board_with(site: LiveSite, title: str) -> Any:
    page = site.get("/")
    return page if page is not None and title in page.text else None


@pytest.mark.timeout(3600)
def test_an_entry_is_trained_through_three_kills_scored_and_stands_on_the_board(tmp_path: Path) -> None:
    with live_site(tmp_path, BUDGET) as site:
        sha = make_repository(site.repository)
        site.start_web()
        site.start_worker()
        site.start_node(site.manage("join_token", "--trusted").split()[-1])

        # In: an entry without a webhook, looked at and approved in the admin.
        site.manage("submit_entry", str(site.repository), sha, "--title", "An idea", "--arch", "idea")
        entry = site.json("entries")["items"][0]
        assert entry["state"] == "proposed"
        assert run_of(site) is None, "nothing runs before a maintainer has approved it"
        site.approve(entry["id"], sha)

        # kill -9 of the trainer: another attempt goes on from the last checkpoint.
        reached = site.wait(lambda: step_beyond(site, 40), "the training to be under way")
        for process in site.trainers():
            os.kill(process, signal.SIGKILL)
        # kill -9 of the agent: its sandbox dies with it; a new agent takes up the thread.
        reached = site.wait(lambda: step_beyond(site, reached + 30), "training to go on after the trainer's death")
        site.kill("node")
        site.wait(lambda: not site.trainers(), "the sandbox to die with its agent")
        site.start_node()
        # kill -9 of the server: agent and trainer go on without it.
        site.wait(lambda: step_beyond(site, reached + 30), "training to go on after the agent's death")
        site.kill("web")
        site.start_web()

        run = site.wait(lambda: ended(site), "the end")
        assert run["state"] == "finished", f"{run['reason']}\n{site.last_words()}"

        # Out: judged by the trusted scorer, on the board, with the commit and its text.
        detail = site.json(f"runs/{run['id']}")
        assert detail["trust"] == "scored"
        assert 0.5 < detail["bits_per_byte"] < 8
        assert {score["name"] for score in detail["scores"]} >= {"bits_per_byte", "nats_per_token"}
        assert [row["id"] for row in site.json("tracks/tiny/board")] == [run["id"]]
        board = site.wait(lambda: board_with(site, "An idea"), "the standings to be recomputed")
        assert sha[:7] in board.text
        assert f"{detail['bits_per_byte']:.4f}" in board.text
        assert site.json(f"runs/{run['id']}/samples")

        # Three attempts, and the curve of one uninterrupted run, to the last digit.
        assert attempts(site) >= 3
        by_hand = uninterrupted(site, configuration(site, run["id"]), sha)
        assert curve(site, run["id"]) == by_hand
        assert len(by_hand["train"]) > 20

        # And nothing stays behind.
        site.stop_all()
        assert site.left_over() == []
        assert list((tmp_path / "node" / "work").iterdir()) == []
