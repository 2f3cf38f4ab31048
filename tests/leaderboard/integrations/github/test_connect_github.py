"""`manage.py connect_github`: the checklist of settings at GitHub and on the site."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from leaderboard.integrations.github import checklist
from leaderboard.models import Delivery
from tests.support import github_payloads as payloads
from tests.support import github_server
from tests.support.github_server import GitHub

pytestmark = pytest.mark.processes

SITE = "https://train.example"


@pytest.fixture
def connected_github(github: GitHub, settings: Any) -> GitHub:
    """A GitHub server with a complete configuration for the site's App."""
    settings.SITE_URL = SITE
    settings.GITHUB_WEBHOOK_SECRET = "long enough for a webhook"
    github.hook.update(url=f"{SITE}/github/webhook", secret=settings.GITHUB_WEBHOOK_SECRET)
    return github


@pytest.fixture
def token_github(connected_github: GitHub, settings: Any) -> GitHub:
    """The same with a personal token and a repository webhook."""
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    settings.GITHUB_TOKEN = github_server.TOKEN
    repository = connected_github.get_or_create_repository()
    repository.roles["mara"] = "admin"
    config = {"url": f"{SITE}/github/webhook", "content_type": "json", "insecure_ssl": "0", "secret": "********"}
    repository.hooks[1] = {"id": 1, "active": True, "events": ["pull_request", "issue_comment"], "config": config}
    return connected_github


def run_connect_github(*flags: str) -> tuple[list[str], list[str]]:
    """Run the command; return its satisfied items, and its missing items with their hints."""
    out = StringIO()
    try:
        call_command("connect_github", *flags, stdout=out)
    except CommandError as error:
        out.write(f"{error}\n")
    lines = out.getvalue().splitlines()
    satisfied = [line[4:] for line in lines if line.startswith("[x]")]
    missing = [f"{line[4:]} {lines[n + 1].strip()}" for n, line in enumerate(lines) if line.startswith("[ ]")]
    assert len(satisfied) + 2 * len(missing) + 1 == len(lines)
    expected = "The site is connected" if not missing else f"{len(missing)} thing"
    assert lines[-1].startswith(expected)
    return satisfied, missing


def test_connect_github_with_complete_app_reports_nothing_missing(connected_github: GitHub) -> None:
    satisfied, missing = run_connect_github()
    assert missing == []
    assert "GitHub knows our App: daily-train" in satisfied
    assert "The App hears of pull_request" in satisfied
    assert "trains grants checks: write" in satisfied
    assert "GitHub has delivered nothing yet" in satisfied


def test_connect_github_on_new_site_lists_settings(settings: Any, db: None) -> None:
    settings.GITHUB_REPOSITORY, settings.MAIN_REPOSITORY, settings.SITE_URL = "", "/srv/train", "http://127.0.0.1:8000"
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = settings.GITHUB_TOKEN = settings.GITHUB_WEBHOOK_SECRET = ""
    satisfied, missing = run_connect_github()
    assert satisfied == []
    for line, name in zip(
        missing, ["GITHUB_REPOSITORY", "SITE_URL", "GITHUB_WEBHOOK_SECRET", "GITHUB_APP_ID"], strict=True
    ):
        assert name in line


@pytest.mark.parametrize(
    ("break_configuration", "message"),
    [
        (lambda github: github.permissions.update(checks="read"), "asks for checks: write Grant it"),
        (lambda github: github.permissions.pop("issues"), "asks for issues: write Grant it"),
        (lambda github: github.events.remove("issue_comment"), "hears of issue_comment Subscribe"),
        (
            lambda github: github.hook.update(url="https://old.example/"),
            "It should be https://train.example/github/webhook",
        ),
        (lambda github: github.hook.update(content_type="form"), "sends application/json"),
        (lambda github: github.hook.update(secret=""), "has a secret"),
        (lambda github: github.hook.update(insecure_ssl="1"), "certificate"),
        (lambda github: github.installed.clear(), "installed for trains/daily Install it"),
        (
            lambda github: github.fail_requests(401, "Bad credentials", path="^/app$"),
            "GitHub answers GitHub rejects the site",
        ),
        (lambda github: github.fail_requests(502, path="^/app$"), "GitHub answers GitHub answered 502"),
    ],
)
def test_connect_github_with_broken_app_reports_the_fault(
    connected_github: GitHub, break_configuration: Any, message: str
) -> None:
    break_configuration(connected_github)
    _, missing = run_connect_github()
    assert any(message in line for line in missing), missing


def test_connect_github_with_fix_corrects_webhook(connected_github: GitHub) -> None:
    connected_github.hook.update(url="", content_type="form", secret="")
    assert len(run_connect_github()[1]) == 3
    assert run_connect_github("--fix")[1] == []
    assert connected_github.hook == {
        "url": f"{SITE}/github/webhook",
        "content_type": "json",
        "insecure_ssl": "0",
        "secret": "long enough for a webhook",
    }


def test_connect_github_with_failed_delivery_explains_it(connected_github: GitHub) -> None:
    connected_github.deliveries = [
        {"id": 1, "guid": "g", "event": "ping", "delivered_at": payloads.NOW, "status_code": 401}
    ]
    assert "The secret at GitHub is not GITHUB_WEBHOOK_SECRET" in run_connect_github()[1][0]


def test_connect_github_with_redeliver_reports_response(
    connected_github: GitHub, site_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected_github.hook["url"] = f"{site_url}/github/webhook"
    monkeypatch.setattr(checklist, "get_webhook_url", lambda: connected_github.hook["url"])
    assert "There is nothing to send again" in run_connect_github("--redeliver")[1][0]
    connected_github.deliver("ping", {"zen": "Half measures are as bad as nothing at all.", "hook_id": 1})
    satisfied, missing = run_connect_github("--redeliver")
    assert (satisfied[-1], missing) == ("A redelivery arrives and is answered 200", [])
    assert Delivery.objects.count() == 1
    connected_github.hook["secret"] = "another one"
    _, missing = run_connect_github("--redeliver")
    assert missing == ["A redelivery arrives and is answered 401 " + checklist.DELIVERY_HINTS[401]]


def test_connect_github_with_plain_token_reports_nothing_missing(token_github: GitHub) -> None:
    satisfied, missing = run_connect_github()
    assert missing == []
    assert "GitHub knows the owner of our token: mara" in satisfied


def test_connect_github_with_broken_plain_token_reports_the_fault(token_github: GitHub) -> None:
    repository = token_github.get_or_create_repository()
    repository.hooks[1]["events"] = ["push"]
    assert [line.split(" Edit")[0] for line in run_connect_github()[1]] == [
        "The webhook hears of issue_comment",
        "The webhook hears of pull_request",
    ]
    repository.hooks.clear()
    assert "Add it: Settings, Webhooks" in run_connect_github()[1][0]
    repository.roles["mara"] = "read"
    satisfied, missing = run_connect_github()
    assert "The token may write to trains/daily" in missing[0]
    assert any("may not look at webhooks" in line for line in satisfied)


def test_django_check_with_partial_github_settings_warns(settings: Any) -> None:
    settings.GITHUB_APP_ID, settings.GITHUB_PRIVATE_KEY, settings.GITHUB_WEBHOOK_SECRET = "1", "", ""
    assert [warning.id for warning in checklist.check_github_settings(None)] == ["github.W001", "github.W002"]
    settings.GITHUB_APP_ID = settings.GITHUB_TOKEN = ""
    assert checklist.check_github_settings(None) == []
