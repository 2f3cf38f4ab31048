"""The commands of each tutorial run as they are printed, in a clone of the repository."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from trainer.distributed.ports import find_free_port

TUTORIALS = sorted((REPOSITORY / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"^```sh(?: title=\"(.+?)\")?\n(.*?)^```", re.M | re.S)


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
def environment(checkout: Path) -> dict[str, str]:
    author = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    return (
        kept | author | {"PYTHONPATH": str(checkout), "DAILYTRAIN_HOME": str(checkout / "var"), "HOME": str(checkout)}
    )


@pytest.fixture
def terminals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of the blocks with a title, which get Ctrl-C in the end, the last one first."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in reversed(processes):
        os.killpg(process.pid, signal.SIGINT)
        process.wait(120)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_commands_succeed(
    page: Path, checkout: Path, environment: dict[str, str], terminals: list[subprocess.Popen[bytes]]
) -> None:
    text = page.read_text().replace("8000", str(find_free_port()))
    for title, commands in BLOCK.findall(text):
        shell = ["bash", "-euo", "pipefail", "-c", commands]
        if title:
            terminals.append(subprocess.Popen(shell, cwd=checkout, env=environment, start_new_session=True))
        else:
            foreground = subprocess.Popen(shell, cwd=checkout, env=environment, start_new_session=True)
            while foreground.poll() is None and all(terminal.poll() is None for terminal in terminals):
                time.sleep(0.2)
            if foreground.poll() is None:
                os.killpg(foreground.pid, signal.SIGTERM)
            assert foreground.wait() == 0, commands
        assert all(terminal.poll() is None for terminal in terminals), "a command in another terminal has ended"


def test_tutorials_exist_for_entry_node_and_site() -> None:
    assert [page.stem for page in TUTORIALS] == ["first-entry", "first-node", "first-site"]
