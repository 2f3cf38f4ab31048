"""The journey of a sponsor in a real browser and with a real agent, and accessibility of the sponsors' pages."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from playwright.sync_api import Page, expect
from pytest_django import Settings

from leaderboard import runs
from leaderboard.models import Run
from scheduler import storage
from scheduler.models import Job, Lease, Node, Sponsor
from tests.browser.test_access import AXE, PHONE
from tests.support import scene, stdlib_release
from tests.support.github_oauth import CLIENT_ID, SECRET, OAuthServer
from tests.support.waits import WAIT_SECONDS
from trainer.sandbox import get_driver

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


# --- the journey -----------------------------------------------------------------------------------------------------


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Return a function that starts the agent by the command of the page, from this checkout."""
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    started: list[subprocess.Popen[bytes]] = []

    def start(line: str) -> subprocess.Popen[bytes]:
        words = shlex.split(line)
        command = [sys.executable, "-m", "trainer.cli", *words[words.index("node") :], "--home", str(tmp_path / "node")]
        with (tmp_path / "agent.log").open("wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def queue_run() -> Run:
    """Queue a run whose release needs no torch and does not train."""
    track = scene.create_track(config={"steps": 30, "pace": 0.03}, probe_seconds=0, expected_seconds=5)
    track.season.tokenizer, track.season.dataset_hash = "bpe:256", "e" * 64
    track.season.save()
    run = scene.create_run(scene.create_entry(track, "Smeared keys"))
    assert runs.queue_run(run, release=storage.store_bytes(stdlib_release.build_tar(stdlib_release.FILES)))
    return run


def test_sponsor_fills_form_runs_agent_and_gets_certificate(
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

    # The certificate and the public list.
    page.get_by_role("link", name="Certificate").click()
    expect(page.get_by_role("heading", name="Ada’s garage")).to_be_visible()
    expect(page.locator(".certificate")).to_contain_text("CPU-seconds")
    page.goto("/sponsors/")
    expect(page.get_by_role("row", name="Ada’s garage")).to_contain_text("CPU-seconds")


def test_github_sign_in_is_allowed_by_content_security_policy(
    open_page: Callable[..., Page], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    github = OAuthServer()
    for name, path in (("authorize", "/login/oauth/authorize"), ("access_token", "/login/oauth/access_token")):
        monkeypatch.setattr(GitHubOAuth2Adapter, f"{name}_url", github.address + path)
    monkeypatch.setattr(GitHubOAuth2Adapter, "profile_url", f"{github.address}/user")
    app = {"client_id": CLIENT_ID, "secret": SECRET}
    settings.SOCIALACCOUNT_PROVIDERS = {"github": {"APPS": [app], "OAUTH_PKCE_ENABLED": True}}
    page = open_page("/sponsors/lend/")

    page.get_by_role("button", name="Sign in with GitHub").click()

    expect(page.get_by_role("heading", name="Lend a GPU")).to_be_visible()
    expect(page.locator(".account")).to_have_text("octocat")
    github.close()


# --- accessibility ----------------------------------------------------------------------------------------------------


@pytest.fixture
def garage(live_server: Any) -> dict[str, Any]:
    """A sponsor with a working and a draining node; `session` is the sponsor's session cookie."""
    ada = User.objects.create_user("ada")
    sponsor = Sponsor.objects.create(user=ada, name="Ada’s garage", link="https://example.org/ada")
    values = {"owner": ada, "token_hash": None, "trusted": False}
    gpu = {"gpus": ["NVIDIA GeForce RTX 3090"], "cpus": 16, "memory_bytes": 64 * 2**30, "sandboxes": ["bubblewrap"]}
    loco = scene.create_node(
        "loco", **{**values, "token_hash": "1" * 64, "hardware": gpu, "labels": ["1x24gb", "1x3090"]}
    )
    scene.create_node(
        "steam", **{**values, "token_hash": "2" * 64, "state": Node.State.DRAINING, "reason": "It rests."}
    )
    train = scene.create_training_run(scene.create_entry(scene.create_track(), "Smeared keys"), 40)
    held = scene.create_lease(train, loco)
    Lease.objects.filter(pk=held.pk).update(gpus=1, accelerator=gpu["gpus"][0], seconds=9000)
    client = Client()
    client.force_login(ada)
    session = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}
    return {"loco": loco, "sponsor": sponsor, "session": session}


def sign_in(page: Page, garage: dict[str, Any]) -> Page:
    page.context.add_cookies([garage["session"]])
    return page


def addresses(garage: dict[str, Any]) -> list[str]:
    loco, sponsor = garage["loco"].pk, garage["sponsor"].pk
    pages = ["", "lend/", "mine/", f"{sponsor}/certificate/", f"nodes/{loco}/", f"nodes/{loco}/settings/"]
    return [f"/sponsors/{path}" for path in pages]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sponsor_pages_have_no_serious_axe_violation(
    open_page: Callable[..., Page], garage: dict[str, Any], scheme: str
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci")
    page = open_page("/accounts/login/", color_scheme=scheme)
    serious: list[str] = []

    for path in ["/accounts/signup/", *addresses(garage)[:-1]]:
        if path.startswith("/sponsors/"):
            sign_in(page, garage)
        page.goto(path)
        page.evaluate(AXE.read_text())
        serious += [
            f"{path} {found['id']}: {found['help']} {[node['html'][:120] for node in found['nodes']]}"
            for found in page.evaluate("axe.run()")["violations"]
            if found["impact"] in ("serious", "critical")
        ]

    assert serious == []


def test_sponsor_pages_fit_a_phone_and_request_no_other_host(
    open_page: Callable[..., Page], garage: dict[str, Any], live_server: Any
) -> None:
    page = open_page("/accounts/login/", viewport=PHONE)
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    over = {}
    for path in ["/accounts/login/", *addresses(garage)]:
        if path.startswith("/sponsors/"):
            sign_in(page, garage)
        page.goto(path)
        for kind in page.locator('[name="available"]').all():  # each choice shows other fields
            kind.check()
            over[path, kind.get_attribute("value")] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        over[path, ""] = page.evaluate("document.documentElement.scrollWidth - innerWidth")

    assert {place: pixels for place, pixels in over.items() if pixels > 0} == {}
    assert urls
    assert all(url.startswith((live_server.url, "data:")) for url in urls)


def test_lending_form_works_by_keyboard_and_without_script(
    open_page: Callable[..., Page], garage: dict[str, Any], settings: Settings
) -> None:
    settings.NODE_IMAGE = "registry.example/node:1"
    page = sign_in(open_page("/sponsors/", java_script_enabled=False), garage)
    page.goto("/sponsors/lend/")
    days = page.get_by_role("group", name="Window 1").get_by_role("checkbox")
    expect(days.first).to_be_hidden()

    page.get_by_label("Name of the machine").focus()
    page.keyboard.type("night-train")
    page.get_by_label("Always").focus()
    page.keyboard.press("ArrowDown")
    expect(days.first).to_be_visible()
    days.first.focus()
    page.keyboard.press("Space")
    page.get_by_label("From", exact=True).first.fill("19:00")
    page.get_by_label("To", exact=True).first.fill("07:00")
    page.get_by_label("Your time zone").select_option("Asia/Tokyo")
    page.get_by_label("Your time zone").press("Enter")
    page.get_by_role("button", name="Show the command").press("Enter")

    expect(page.locator("#docker-line")).to_contain_text("--name night-train")
    node = Node.objects.get(name="night-train")
    assert (node.timezone, node.windows.get().weekday) == ("Asia/Tokyo", 0)
