"""A node that is installed from a running site by the line on its page, into an environment of its own."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from pytest_django import Settings

from leaderboard import runs
from scheduler import storage
from scheduler.models import Job, Node
from tests.support import scene, stdlib_release
from tests.support.pasted_line import lend_machine
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PASSWORD = "a password of this test only"


def create_environment(folder: Path) -> Path:
    """Return the Python of a new environment that sees the dependencies installed here, but not this checkout."""
    venv.create(folder)
    packages = next(folder.glob("lib/python3*/site-packages"))
    # Python reads no .pth file of a folder that a .pth file names, so the editable installation stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return folder / "bin" / "python"


def test_wheel_installed_by_pasted_line_joins_and_finishes_a_job(
    site_url: str, settings: Settings, tmp_path: Path
) -> None:
    settings.SITE_URL, settings.WHEELS = site_url, tmp_path / "wheels"
    call_command("build_wheel", verbosity=0)
    User.objects.create_user("ada", password=PASSWORD)
    track = scene.create_track(config={"steps": 30}, probe_seconds=0, expected_seconds=5)
    track.season.tokenizer, track.season.dataset_hash = "bpe:256", "e" * 64
    track.season.save()
    run = scene.create_run(scene.create_entry(track, "Smeared keys"))
    assert runs.queue_run(run, release=storage.store_bytes(stdlib_release.build_tar(stdlib_release.FILES)))

    line, _ = lend_machine(site_url, "ada", PASSWORD)
    words = shlex.split(line)
    assert words[:3] == ["pipx", "run", "--spec"]
    program = words.index("dailytrain")
    python = create_environment(tmp_path / "environment")
    # What `pipx run` does: it installs the package into an environment and starts the program there.
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", words[3]]
    installed = subprocess.run(install, capture_output=True, text=True, cwd=tmp_path)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    where = subprocess.run([python, "-c", "import trainer; print(trainer.__file__)"], capture_output=True, cwd=tmp_path)
    assert Path(where.stdout.decode()).is_relative_to(tmp_path / "environment")

    log = tmp_path / "agent.log"
    with log.open("wb") as output:
        command = [python.with_name(words[program]), *words[program + 1 :], "--home", tmp_path / "node"]
        agent = subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not Job.objects.filter(run=run, state=Job.State.DONE).exists():
            assert agent.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
    finally:
        agent.terminate()
        agent.wait(WAIT_SECONDS)
    assert Node.objects.get().name == "loco"
