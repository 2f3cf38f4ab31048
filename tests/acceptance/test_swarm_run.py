"""A swarm's run on a real site: a trusted node leads, volunteers come by themselves, and the result is on the board."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.live_site import LiveSite, database, git, make_text

pytest.importorskip("hivemind")

STEPS = 10
FILES = {
    "trainer/models/__init__.py": 'ARCHITECTURES = {\n    "gpt": "trainer.models.gpt",\n}\n',
    "trainer/models/gpt.py": "class Model:\n    pass\n",
}
"""Of main, as far as an entry is read: what runs is the site's own release."""
SETUP = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from leaderboard.submissions import intake
from leaderboard.models import Season, Track
from scheduler.node_api import auth
season = Season.objects.create(name="Test season", corpus="files:{text}", tokenizer="bpe:512")
call_command("prepare_season", verbosity=0)
season.refresh_from_db()
track = Track.objects.create(
    slug="together", name="Together", season=season, budget="{steps}steps", expected_seconds=30, probe_seconds=0,
    kind="swarm", swarm={{"stages": 2, "workers": 1, "minimum": 1, "patience": 60}}, is_default=True,
    config={{
        "model": {{"depth": 2, "width": 32, "heads": 2}},
        "train": {{"sequence_length": 32, "batch": 16}},
        "swarm": {{"micro_batches": 4, "learning_rate": 0.003, "warmup_steps": 2, "checkpoint_every": 5}},
    }},
    limits={{"memory_bytes": 8 * 2**30, "disk_bytes": 2**28, "processes": 512, "wall_seconds": 3600}},
)
track.full_clean()
entry = intake.enter({repository!r}, "main", "Everybody", "gpt", track)
(run,) = intake.approve(entry, entry.sha, None)
print(run.pk, auth.new_join_token(trusted=True))
"""
LOCAL = ("--swarm-listen", "127.0.0.1:0")


@pytest.mark.timeout(900)
def test_volunteers_train_one_model_that_is_scored_and_stands_on_the_board(tmp_path: Path) -> None:
    with database(tmp_path) as address:
        site = LiveSite(tmp_path, address)
        try:
            trained_together(site)
        finally:
            site.stop_all()


def trained_together(site: LiveSite) -> None:
    run, token = set_up(site)
    site.start_web()
    lead(site, token)
    for number in range(2):
        volunteer(site, run, number)
    site.wait(lambda: state(site, run) == "finished", 600, "the run to be scored")

    found = site.json(f"runs/{run}")
    assert found["bits_per_byte"] > 0
    assert found["step"] == STEPS
    board = site.get("/tracks/together/")
    assert board is not None
    assert f"/entries/{found['entry']}/" in board.text

    told = site.get(f"/runs/{run}/swarm.json")
    assert told is not None
    events = told.json()["events"]
    assert [event["step"] for event in events if event["what"] == "step"] == list(range(1, STEPS + 1))
    names = {event["name"] for event in events if event["what"] == "join"}
    assert names == {"volunteer-0", "volunteer-1"}
    page = site.get(f"/runs/{run}/swarm/")
    assert page is not None
    assert "volunteer-0" in page.text
    books = json.loads(site.manage("shell", "-c", BOOKS).splitlines()[-1])
    assert books["rows"] == 2 * 16 * STEPS  # each row of text once at each stage
    assert books["open"] == []
    for name in ("volunteer-0", "volunteer-1", "node"):
        site.processes[name].terminate()
        assert site.processes.pop(name).wait(120) == 0
    assert [line for line in site.left_over() if "swarm" in line or "p2pd" in line] == []


BOOKS = """
import json
from leaderboard.models import Seat
from scheduler.models import Job
print(json.dumps({
    "rows": sum(Seat.objects.values_list("rows", flat=True)),
    "open": [job.pk for job in Job.objects.filter(kind="seat").exclude(state__in=["done", "cancelled"])],
}))
"""


def set_up(site: LiveSite) -> tuple[str, str]:
    """Make the site; return its run and a trusted node's token."""
    site.environment |= {"SMOKE_UNAPPROVED": "nobody", "LEASE_SECONDS": "120"}
    site.start_redis()
    make_text(site.folder / "text")
    for name, text in FILES.items():
        file = site.repository / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(site.repository, "init", "--quiet")
    git(site.repository, "add", ".")
    git(site.repository, "commit", "--quiet", "-m", "Main")
    where = {"repository": str(site.repository), "text": site.folder / "text"}
    said = site.manage("shell", "-c", SETUP.format(steps=STEPS, **where), seconds=600)
    return tuple(said.split()[-2:])  # type: ignore[return-value]


def lead(site: LiveSite, token: str) -> None:
    """Start the trusted node, whose own code needs no sandbox here."""
    home = str(site.folder / "node")
    command = (sys.executable, "-m", "trainer.cli", "node", "--server", site.url, "--home", home, "--name", "leader")
    site.start("node", *command, "--sandbox", "none", *LOCAL, DAILYTRAIN_JOIN_TOKEN=token)


def volunteer(site: LiveSite, run: str, number: int) -> None:
    name = f"volunteer-{number}"
    command = (sys.executable, "-m", "trainer.cli", "swarm", "join", "--server", site.url, "--run", run)
    site.start(name, *command, "--home", str(site.folder / name), "--name", name, *LOCAL)


def state(site: LiveSite, run: str) -> str:
    found = site.json(f"runs/{run}")
    assert not found or found["state"] not in ("failed", "cancelled"), f"{found}\n{site.last_words()}"
    return str(found["state"]) if found else ""
