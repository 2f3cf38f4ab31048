"""The commands of each tutorial run as they are printed, in a clone of the repository.

Blocks titled *as root* do not run: their syntax is checked, and that the commands of ours exist.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class

from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS
from trainer.distributed.ports import find_free_port

pytestmark = pytest.mark.processes

TUTORIALS = sorted((REPOSITORY / "docs" / "tutorial").glob("*.md"))
NOT_RUN = ("as root",)
SERVER = {  # what the page names, and what a test has in its place
    ".venv/bin/": f"{REPOSITORY}/.venv/bin/",  # the sandbox holds the folder of Python, not what its links lead to
    "https://train.example.org": "http://127.0.0.1:8000",
    "https://github.com/OWNER/NAME": "$PWD",
    "DATABASE_URL=postgres:///train": "DATABASE_URL=sqlite:///$PWD/site.sqlite3",
    "REDIS_URL=redis://127.0.0.1:6379/0": "REDIS_URL=$TEST_REDIS_URL",
    "--corpus fineweb-edu:sample-100BT --tokenizer bpe:32768 --tokens 12B": (
        "--corpus python-docs --tokenizer bpe:512 --tokens 200k --suite blimp_sample"
    ),
    "--scale 1e-5": "--scale 1e-9 --main-only",  # tests/acceptance/test_rehearsal.py does the whole of it
}
LOAD_SETTINGS = "if [ -f site.env ]; then . ./site.env; fi\n"
BLOCK = re.compile(r"^```sh(?: title=\"(.+?)\")?\n(.*?)^```", re.M | re.S)


@dataclass
class TutorialRunner:
    """Runs the blocks of a page in a checkout. Blocks with a title run in a terminal of their own until the end."""

    checkout: Path
    environment: dict[str, str]
    outputs: list[Path] = field(default_factory=list)
    """What each block printed."""
    terminals: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run_block(self, title: str, commands: str) -> None:
        """Start a block with a title; run another one to its end, while the terminals run."""
        process = self.start(commands)
        if title:
            self.terminals.append(process)
        else:
            while process.poll() is None and all(terminal.poll() is None for terminal in self.terminals):
                time.sleep(0.2)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            assert process.wait() == 0, commands + self.outputs[-1].read_text()
        assert all(terminal.poll() is None for terminal in self.terminals), "a command in another terminal has ended"

    def run_check(self, command: str) -> tuple[int, str]:
        """Run a command that is not on the page. Return its exit code and what it printed."""
        return self.start(command).wait(), self.outputs[-1].read_text()

    def start(self, commands: str) -> subprocess.Popen[bytes]:
        shell = ["bash", "-euo", "pipefail", "-c", LOAD_SETTINGS + commands]
        self.outputs.append(self.checkout.with_name(f"output-{len(self.outputs)}.txt"))
        self.outputs[-1].write_text(f"$ {commands}\n")
        options: dict[str, Any] = {"cwd": self.checkout, "env": self.environment, "start_new_session": True}
        with self.outputs[-1].open("ab") as output:
            return subprocess.Popen(shell, stdout=output, stderr=subprocess.STDOUT, **options)

    def stop_newest_terminal(self) -> None:
        """Press Ctrl-C in the newest terminal."""
        process = self.terminals.pop()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(WAIT_SECONDS)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Clone the repository, with this environment as its installed .venv."""
    folder = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, folder], check=True)
    subprocess.run(["git", "checkout", "--quiet", "-B", "main"], cwd=folder, check=True)
    (folder / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (folder / ".venv" / name).symlink_to(REPOSITORY / ".venv" / name)
    (folder / ".venv" / "installed").touch()
    return folder


@pytest.fixture
def port() -> str:
    return str(find_free_port())


@pytest.fixture
def runner(checkout: Path) -> Iterator[TutorialRunner]:
    author = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    homes = {"PYTHONPATH": str(checkout), "DAILYTRAIN_HOME": str(checkout / "var"), "HOME": str(checkout)}
    runner = TutorialRunner(checkout, kept | author | homes)
    yield runner
    while runner.terminals:
        runner.stop_newest_terminal()
    for output in runner.outputs:  # pytest shows it if the test failed
        sys.stdout.write(output.read_text(errors="replace"))


def read_blocks(page: Path, port: str) -> list[tuple[str, str]]:
    """Return title and commands of each block that runs, with what a test has in place of a server."""
    text = page.read_text()
    for named, given in SERVER.items() if page.stem == "first-site" else ():
        assert named in text
        text = text.replace(named, given)
    blocks: list[tuple[str, str]] = BLOCK.findall(text.replace("8000", port))
    return [(title, commands) for title, commands in blocks if title not in NOT_RUN]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_blocks_that_do_not_run_are_valid(page: Path) -> None:
    for title, commands in BLOCK.findall(page.read_text()):
        if title in NOT_RUN:
            assert subprocess.run(["bash", "-n", "-c", commands]).returncode == 0, commands
            for command, options in re.findall(r"manage\.py (\w+) (.*)", commands):
                load_command_class(get_commands()[command], command).create_parser("manage.py", command).parse_args(
                    options.split()
                )


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.stem != "first-site"], ids=lambda page: page.stem)
def test_tutorial_commands_succeed(page: Path, runner: TutorialRunner, port: str) -> None:
    for title, commands in read_blocks(page, port):
        runner.run_block(title, commands)


# --- the first site, and its night -----------------------------------------------------------------------------------

SITE_PAGE = REPOSITORY / "docs" / "tutorial" / "first-site.md"
NIGHT = "night-h100"
DECLARED = {
    "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85 * 10**9, "uuid": "GPU-declared"}],
    "memory_bytes": 128 * 2**30,
    "disk_free_bytes": 2 * 10**12,
}
JOIN_DECLARED = f"""
token=$(.venv/bin/python manage.py join_token --trusted | tail -n 1)
exec .venv/bin/python -m dailytrain.rehearsal.node --server "$SITE_URL" --token "$token" --name h100 --home h100 \\
    --hardware '{json.dumps(DECLARED)}'
""".replace(".venv/bin/", SERVER[".venv/bin/"])
SET_SECONDS = f"""
.venv/bin/python manage.py shell -v 0 -c "
from leaderboard.models import Track
Track.objects.filter(slug='{NIGHT}').update(budget='%ds', expected_seconds=%d)"
""".replace(".venv/bin/", SERVER[".venv/bin/"])
SHORT, DAY = 6, 86_400
"""Seconds of the night: the test's season has text for six seconds of an H100; the page's night takes a day. A
ladder's rungs of so short a night are impossible, so the worker logs a `BudgetError` until the day is back."""


def check_night(runner: TutorialRunner) -> tuple[int, dict[str, str]]:
    """Return exit code, and name -> state of each line."""
    code, printed = runner.run_check(f"{SERVER['.venv/bin/']}python manage.py check_night {NIGHT}")
    lines = re.findall(r"^(ok|missing|missing \(optional\)|cannot tell) {2,}(\S.*?) {2,}", printed, re.M)
    return code, {name: state for state, name in lines}


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_first_site_rehearses_its_night_and_is_ready_with_an_h100(
    runner: TutorialRunner, port: str, redis_url: str
) -> None:
    """Follow the page; at its check an H100 is declared, as no test has one, and leaves again."""
    runner.environment["TEST_REDIS_URL"] = redis_url
    checks = 0
    for title, commands in read_blocks(SITE_PAGE, port):
        runner.run_block(title, commands)
        if "manage.py migrate" in commands:
            assert check_night(runner) == (1, {}), "there is no track"
        if "check_night" in commands:
            checks += 1
            check_night_without_and_with_an_h100(runner)
    assert checks == 1


def check_night_without_and_with_an_h100(runner: TutorialRunner) -> None:
    code, states = check_night(runner)
    assert code == 1
    assert {states[name] for name in ("Schedule", "Season", "Signing key")} == {"ok"}
    assert {states[name] for name in ("Node", "Trusted scorer")} == {"missing"}

    assert runner.run_check(SET_SECONDS % (SHORT, SHORT))[0] == 0
    runner.run_block("terminal of the declared H100", JOIN_DECLARED)
    deadline = time.monotonic() + WAIT_SECONDS  # for the node, and for beat, which writes its times every 3 minutes
    while (found := check_night(runner))[0] and time.monotonic() < deadline:
        assert all(terminal.poll() is None for terminal in runner.terminals)
    code, states = found
    assert code == 0, runner.outputs[-1].read_text()
    assert "missing" not in states.values()
    assert {states[name] for name in ("Node", "Trusted scorer", "Background work")} == {"ok"}
    runner.stop_newest_terminal()  # the page's last block waits for a night that is queued
    assert runner.run_check(SET_SECONDS % (DAY, DAY))[0] == 0
