"""A swarm run on a real site: a trusted node coordinates, volunteers join, and the result is on the board."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_site import LiveSite, commit_main, database, make_text
from tests.support.waits import WAIT_SECONDS

pytest.importorskip("hivemind")

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS = 10
FILES = {
    "trainer/models/__init__.py": 'ARCHITECTURES = {\n    "gpt": "trainer.models.gpt",\n}\n',
    "trainer/models/gpt.py": "class Model:\n    pass\n",
}
"""The files of main that the intake reads. Nodes run the site's own release."""
LOCAL = ("--swarm-listen", "127.0.0.1:0")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LiveSite]:
    with database(tmp_path) as address:
        site = LiveSite(tmp_path, address)
        try:
            yield site
        finally:
            site.stop_all()


@pytest.mark.timeout(3600)
def test_swarm_of_volunteers_trains_model_that_is_scored_on_the_board(site: LiveSite) -> None:
    run = start_run(site)
    site.wait(lambda: read_state(site, run) == "finished", "the run to be scored")

    found = site.get_json(f"runs/{run}")
    assert found["bits_per_byte"] > 0
    assert found["step"] == STEPS
    site.wait(lambda: is_on_board(site, found["entry"]), "the entry to appear on the board")

    response = site.get(f"/runs/{run}/swarm.json")
    assert response is not None
    events = response.json()["events"]
    assert [event["step"] for event in events if event["what"] == "step"] == list(range(1, STEPS + 1))
    assert {event["name"] for event in events if event["what"] == "join"} == {"volunteer-0", "volunteer-1"}
    page = site.get(f"/runs/{run}/swarm/")
    assert page is not None
    assert "volunteer-0" in page.text
    seats = site.call("swarm.read_seats")
    assert seats["rows"] == 2 * 16 * STEPS  # each row of text once at each stage
    assert seats["open"] == []
    for name in ("volunteer-0", "volunteer-1", "node"):
        site.processes[name].terminate()
        assert site.processes.pop(name).wait(WAIT_SECONDS) == 0
    assert [line for line in site.list_processes() if "trainer.swarm" in line or "p2pd" in line] == []


def start_run(site: LiveSite) -> str:
    """Start a site with a swarm run, a trusted node and two volunteers; return the run."""
    site.environment |= {"SMOKE_UNAPPROVED": "nobody", "LEASE_SECONDS": "120"}
    site.start_redis()
    make_text(site.folder / "text")
    commit_main(site.repository, FILES)
    where = {"repository": str(site.repository), "text": str(site.folder / "text")}
    created = site.call("swarm.create_swarm_run", steps=STEPS, **where)
    site.start_web()
    site.start_worker()
    site.start_node(created["token"], "--sandbox", "none", *LOCAL)  # it runs the site's code only
    for name in ("volunteer-0", "volunteer-1"):
        command = (sys.executable, "-m", "trainer.cli", "swarm", "join", "--server", site.url, "--run", created["run"])
        site.start(name, *command, "--home", str(site.folder / name), "--name", name, *LOCAL)
    return str(created["run"])


def is_on_board(site: LiveSite, entry: int) -> bool:
    board = site.get("/tracks/together/")
    return board is not None and f"/entries/{entry}/" in board.text


def read_state(site: LiveSite, run: str) -> str:
    found = site.get_json(f"runs/{run}")
    assert not found or found["state"] not in ("failed", "cancelled"), f"{found}\n{site.read_log_tails()}"
    return str(found["state"]) if found else ""
