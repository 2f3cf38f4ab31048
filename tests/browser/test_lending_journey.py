"""The journey of a sponsor in a real browser and with a real agent."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from playwright.sync_api import Page, expect
from pytest_django import Settings

from leaderboard import runs
from leaderboard.models import Run
from scheduler import storage
from scheduler.models import Job, Node
from tests.support import scene, stdlib_release
from tests.support.github_oauth import run_oauth_server
from tests.support.waits import WAIT_SECONDS
from trainer.sandbox import get_driver

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def create_environment(folder: Path) -> Path:
    """Return the Python of a new environment that sees the dependencies installed here, but not this checkout."""
    venv.create(folder)
    packages = next(folder.glob("lib/python3*/site-packages"))
    # Python reads no .pth file of a folder that a .pth file names, so the editable installation stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return folder / "bin" / "python"


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Return a function that does what the command of the page does: installs the wheel and starts the agent."""
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    started: list[subprocess.Popen[bytes]] = []

    def start(line: str) -> subprocess.Popen[bytes]:
        words = shlex.split(line)
        assert words[:3] == ["pipx", "run", "--spec"]
        python, program = create_environment(tmp_path / "environment"), words.index("dailytrain")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", words[3]]
        installed = subprocess.run(install, capture_output=True, text=True, cwd=tmp_path)
        assert installed.returncode == 0, installed.stdout + installed.stderr
        command = [python.with_name(words[program]), *words[program + 1 :], "--home", tmp_path / "node"]
        with (tmp_path / "agent.log").open("wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def queue_run() -> Run:
    """Queue a run whose release needs no torch and does not train."""
    track = scene.create_track(config={"steps": 30, "pace": 0.03}, probe_seconds=0, expected_seconds=5)
    track.season.tokenizer, track.season.dataset_hash = "bpe:256", "b" * 64  # of `python-docs`
    track.season.save()
    run = scene.create_run(scene.create_entry(track, "Smeared keys"))
    assert runs.queue_run(run, release=storage.store_bytes(stdlib_release.build_tar(stdlib_release.FILES)))
    return run


def test_sponsor_fills_form_runs_installed_agent_and_gets_certificate(
    open_page: Callable[..., Page],
    site_url: str,
    settings: Settings,
    tmp_path: Path,
    start_agent: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    settings.SITE_URL, settings.WHEELS = site_url, tmp_path
    call_command("build_wheel", verbosity=0)
    run = queue_run()
    page = open_page("/", base_url=site_url)

    # Create a local account, as in development.
    page.get_by_role("link", name="Sponsors").click()
    page.get_by_role("link", name="Lend a GPU").first.click()
    page.get_by_role("link", name="Create account").click()
    page.get_by_label("Username").fill("ada")
    for label in ("Password", "Password (again)"):
        page.get_by_label(label, exact=True).fill("a password of this test only")
    page.get_by_role("button", name="Create account").click()

    # Fill in the form with one error, which keeps the input.
    expect(page.get_by_role("heading", name="Lend a GPU")).to_be_visible()
    expect(page.get_by_label("Your time zone")).to_have_value("Europe/Berlin")  # hidden until windows are chosen
    page.get_by_label("Name of the machine").fill("the loco")
    page.get_by_label("GPUs", exact=True).select_option("0")
    page.get_by_label("Labels of your own").fill("garage")
    page.get_by_label("Your name there").fill("Ada’s garage")
    page.get_by_role("button", name="Show the command").click()
    expect(page.get_by_role("alert")).to_contain_text("letters, digits")
    expect(page.get_by_label("Labels of your own")).to_have_value("garage")
    page.get_by_label("Name of the machine").fill("loco")
    page.get_by_role("button", name="Show the command").click()

    # Start the agent by the shown command. The page updates itself.
    expect(page.locator(".signal.is-waiting")).to_contain_text("Paste this command on loco")
    page.evaluate("window.sameDocument = true")
    process = start_agent(page.locator("#pipx-line").inner_text())
    expect(page.locator(".signal.is-clear")).to_contain_text("loco has joined")
    expect(page.locator(".served")).to_contain_text("Smeared keys")
    expect(page.locator("#now")).to_contain_text("Free")
    assert page.evaluate("window.sameDocument")
    assert Job.objects.get(run=run).state == Job.State.DONE
    assert Node.objects.get().labels.count("garage") == 1

    # Drain the node: its agent exits.
    page.get_by_role("button", name="Drain").click()
    expect(page.locator("h1 .status")).to_have_text("draining")
    assert process.wait(WAIT_SECONDS) == 0
    node_page = page.url

    # The certificate and the public list.
    page.get_by_role("link", name="Certificate").click()
    expect(page.get_by_role("heading", name="Ada’s garage")).to_be_visible()
    expect(page.locator(".certificate")).to_contain_text("CPU-seconds")
    page.goto("/sponsors/")
    expect(page.get_by_role("row", name="Ada’s garage")).to_contain_text("CPU-seconds")

    # Revoke it: the site knows its token no longer.
    page.goto(node_page)
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("main")).to_contain_text("revoked")
    assert Node.objects.get().token_hash is None


def test_github_sign_in_is_allowed_by_content_security_policy(
    open_page: Callable[..., Page], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_oauth_server(settings, monkeypatch):
        page = open_page("/sponsors/lend/")
        page.get_by_role("button", name="Sign in with GitHub").click()
        expect(page.get_by_role("heading", name="Lend a GPU")).to_be_visible()
        expect(page.locator(".account")).to_have_text("octocat")
