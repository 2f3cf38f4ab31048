"""`manage.py connect_github`: a list that says what is missing, and where to set it."""

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

SITE = "https://train.example"


@pytest.fixture
def connected(github: GitHub, settings: Any) -> GitHub:
    """A GitHub where everything is as it should be."""
    settings.SITE_URL = SITE
    settings.GITHUB_WEBHOOK_SECRET = "long enough for a webhook"
    github.hook.update(url=f"{SITE}/github/webhook", secret=settings.GITHUB_WEBHOOK_SECRET)
    return github


@pytest.fixture
def plain(connected: GitHub, settings: Any) -> GitHub:
    """The same with a plain token and a webhook of the repository."""
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    settings.GITHUB_TOKEN = github_server.TOKEN
    of = connected.repository()
    of.roles["mara"] = "admin"
    config = {"url": f"{SITE}/github/webhook", "content_type": "json", "insecure_ssl": "0", "secret": "********"}
    of.hooks[1] = {"id": 1, "active": True, "events": ["pull_request", "issue_comment"], "config": config}
    return connected


def asked(*flags: str) -> tuple[list[str], list[str]]:
    """What the command says is there, and what is missing with its hint."""
    out = StringIO()
    try:
        call_command("connect_github", *flags, stdout=out)
    except CommandError as error:
        out.write(f"{error}\n")
    lines = out.getvalue().splitlines()
    there = [line[4:] for line in lines if line.startswith("[x]")]
    missing = [f"{line[4:]} {lines[n + 1].strip()}" for n, line in enumerate(lines) if line.startswith("[ ]")]
    assert len(there) + 2 * len(missing) + 1 == len(lines)
    expected = "The site is connected" if not missing else f"{len(missing)} thing"
    assert lines[-1].startswith(expected)
    return there, missing


def test_all_is_there(connected: GitHub) -> None:
    there, missing = asked()
    assert missing == []
    assert "GitHub knows our App: daily-train" in there
    assert "The App hears of pull_request" in there
    assert "trains grants checks: write" in there
    assert "GitHub has delivered nothing yet" in there


def test_a_new_site_is_told_what_to_set(settings: Any, db: None) -> None:
    settings.GITHUB_REPOSITORY, settings.MAIN_REPOSITORY, settings.SITE_URL = "", "/srv/train", "http://127.0.0.1:8000"
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = settings.GITHUB_TOKEN = settings.GITHUB_WEBHOOK_SECRET = ""
    there, missing = asked()
    assert there == []
    for line, name in zip(
        missing, ["GITHUB_REPOSITORY", "SITE_URL", "GITHUB_WEBHOOK_SECRET", "GITHUB_APP_ID"], strict=True
    ):
        assert name in line


@pytest.mark.parametrize(
    ("break_it", "sentence"),
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
        (lambda github: github.fail(401, "Bad credentials", path="^/app$"), "GitHub answers GitHub rejects the site"),
        (lambda github: github.fail(502, path="^/app$"), "GitHub answers GitHub answered 502"),
    ],
)
def test_what_is_missing_at_github_is_said(connected: GitHub, break_it: Any, sentence: str) -> None:
    break_it(connected)
    _, missing = asked()
    assert any(sentence in line for line in missing), missing


def test_the_webhook_is_set_as_it_should_be(connected: GitHub) -> None:
    connected.hook.update(url="", content_type="form", secret="")
    assert len(asked()[1]) == 3
    assert asked("--fix")[1] == []
    assert connected.hook == {
        "url": f"{SITE}/github/webhook",
        "content_type": "json",
        "insecure_ssl": "0",
        "secret": "long enough for a webhook",
    }


def test_a_delivery_that_went_wrong_is_explained(connected: GitHub) -> None:
    connected.deliveries = [{"id": 1, "guid": "g", "event": "ping", "delivered_at": payloads.NOW, "status_code": 401}]
    assert "The secret at GitHub is not GITHUB_WEBHOOK_SECRET" in asked()[1][0]


def test_a_redelivery_is_seen_to_arrive(connected: GitHub, site_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connected.hook["url"] = f"{site_url}/github/webhook"
    monkeypatch.setattr(checklist, "get_webhook_url", lambda: connected.hook["url"])
    assert "There is nothing to send again" in asked("--redeliver")[1][0]
    connected.deliver("ping", {"zen": "Half measures are as bad as nothing at all.", "hook_id": 1})
    there, missing = asked("--redeliver")
    assert (there[-1], missing) == ("A redelivery arrives and is answered 200", [])
    assert Delivery.objects.count() == 1
    connected.hook["secret"] = "another one"
    _, missing = asked("--redeliver")
    assert missing == ["A redelivery arrives and is answered 401 " + checklist.DELIVERY_HINTS[401]]


def test_a_plain_token_and_a_webhook_will_do(plain: GitHub) -> None:
    there, missing = asked()
    assert missing == []
    assert "GitHub knows the owner of our token: mara" in there


def test_what_is_missing_with_a_plain_token_is_said(plain: GitHub) -> None:
    of = plain.repository()
    of.hooks[1]["events"] = ["push"]
    assert [line.split(" Edit")[0] for line in asked()[1]] == [
        "The webhook hears of issue_comment",
        "The webhook hears of pull_request",
    ]
    of.hooks.clear()
    assert "Add it: Settings, Webhooks" in asked()[1][0]
    of.roles["mara"] = "read"
    there, missing = asked()
    assert "The token may write to trains/daily" in missing[0]
    assert any("may not look at webhooks" in line for line in there)


def test_half_a_configuration_shows_in_check(settings: Any) -> None:
    settings.GITHUB_APP_ID, settings.GITHUB_PRIVATE_KEY, settings.GITHUB_WEBHOOK_SECRET = "1", "", ""
    assert [warning.id for warning in checklist.check_github_settings(None)] == ["github.W001", "github.W002"]
    settings.GITHUB_APP_ID = settings.GITHUB_TOKEN = ""
    assert checklist.check_github_settings(None) == []
