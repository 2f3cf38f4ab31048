"""What it takes to be connected to GitHub, and what of it is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Warning

from leaderboard.integrations.github import client
from leaderboard.integrations.github.client import NotFoundError
from leaderboard.integrations.github.connection import Connection
from leaderboard.integrations.github.credentials import PlainToken, get_app_token
from leaderboard.integrations.github.deliveries import EVENTS, get_nested
from leaderboard.models import Delivery
from leaderboard.outbox import PermanentError, RetryLater

PERMISSIONS = {"checks": "write", "contents": "read", "issues": "write", "metadata": "read", "pull_requests": "write"}
"""What the App needs. Comments are written with `issues`, and on a pull request with `pull_requests`, too."""
LEVELS = ("", "read", "write", "admin")
ALWAYS_SENT = ("installation", "installation_repositories")
SECRET_LENGTH = 20
POLL_SECONDS, TIMEOUT_SECONDS = 0.5, 20.0


@dataclass(frozen=True)
class CheckItem:
    """One line of the list."""

    ok: bool
    what: str
    hint: str = ""
    """What to do where it is not."""


def check_connection() -> Iterator[CheckItem]:
    """Go through the list. What hangs on something that is missing is left out."""
    yield from check_settings()
    repository = client.get_main_repository()
    try:
        if get_app_token() is not None:
            yield from check_app(client.connect_app(), repository)
        elif settings.GITHUB_TOKEN:
            yield from check_token(Connection(PlainToken(settings.GITHUB_TOKEN)), repository)
    except (PermanentError, RetryLater) as error:
        yield CheckItem(False, "GitHub answers", str(error))


def get_webhook_url() -> str:
    return f"{settings.SITE_URL}/github/webhook"


def check_settings() -> Iterator[CheckItem]:
    """What the settings say, without asking GitHub."""
    repository = client.get_main_repository()
    yield CheckItem(bool(repository), f"The repository: {repository or 'none'}", "Set GITHUB_REPOSITORY to owner/name.")
    host = urlsplit(settings.SITE_URL).hostname or ""
    reachable = settings.SITE_URL.startswith("https://") and host not in ("localhost", "127.0.0.1", "::1")
    yield CheckItem(
        reachable,
        f"The site's address: {settings.SITE_URL}",
        "Set SITE_URL to the https address that GitHub can reach.",
    )
    long_enough = len(settings.GITHUB_WEBHOOK_SECRET) >= SECRET_LENGTH
    hint = "Set GITHUB_WEBHOOK_SECRET to a long random text (openssl rand -hex 32), and the same at GitHub."
    yield CheckItem(long_enough, "The webhook's secret", hint)
    app = bool(settings.GITHUB_APP_ID and settings.GITHUB_PRIVATE_KEY)
    half = bool(settings.GITHUB_APP_ID) != bool(settings.GITHUB_PRIVATE_KEY)
    hint = "Set GITHUB_APP_ID and GITHUB_PRIVATE_KEY (or GITHUB_PRIVATE_KEY_FILE), or GITHUB_TOKEN: docs/github.md."
    yield CheckItem(
        not half and (app or bool(settings.GITHUB_TOKEN)), "Credentials: " + describe_credentials(app), hint
    )


def describe_credentials(app: bool) -> str:
    return f"App {settings.GITHUB_APP_ID}" if app else "a plain token" if settings.GITHUB_TOKEN else "none"


# --- an App -----------------------------------------------------------------------------------------------------------


def check_app(app: Connection, repository: str) -> Iterator[CheckItem]:
    shown = app.get("/app")
    yield CheckItem(True, f"GitHub knows our App: {shown['slug']}")
    page = shown.get("html_url") or "the App"
    yield from check_permissions(
        shown.get("permissions") or {}, "The App asks for", f"Grant it on the settings of {page}."
    )
    for event in sorted(set(EVENTS) - set(ALWAYS_SENT)):
        yield CheckItem(
            event in shown["events"], f"The App hears of {event}", f"Subscribe to it on the settings of {page}."
        )
    yield from check_hook(app.get("/app/hook/config"))
    if repository:
        yield from check_installation(app, repository)
    yield from check_last_delivery(app)


def check_permissions(granted: Mapping[str, str], who: str, hint: str) -> Iterator[CheckItem]:
    for name, level in PERMISSIONS.items():
        has = granted.get(name, "")
        yield CheckItem(has in LEVELS and LEVELS.index(has) >= LEVELS.index(level), f"{who} {name}: {level}", hint)


def check_hook(config: Mapping[str, Any]) -> Iterator[CheckItem]:
    """How GitHub is to deliver."""
    hint = "manage.py connect_github --fix sets it at GitHub, if we are an App."
    yield CheckItem(
        config.get("url") == get_webhook_url(),
        f"The webhook's address: {config.get('url') or 'none'}",
        f"It should be {get_webhook_url()}. {hint}",
    )
    yield CheckItem(config.get("content_type") == "json", "The webhook sends application/json", hint)
    yield CheckItem(str(config.get("insecure_ssl", "0")) == "0", "The webhook checks our certificate", hint)
    yield CheckItem(bool(config.get("secret")), "The webhook has a secret", hint)


def check_installation(app: Connection, repository: str) -> Iterator[CheckItem]:
    try:
        shown = app.get(f"/repos/{repository}/installation")
    except NotFoundError:
        yield CheckItem(False, f"The App is installed for {repository}", "Install it: on the App's page, Install App.")
        return
    yield CheckItem(
        not shown.get("suspended_at"),
        f"The App is installed for {repository}",
        "It is suspended: unsuspend it on GitHub.",
    )
    hint = "Its owner has to accept the App's new permissions: Settings, GitHub Apps, Configure."
    yield from check_permissions(shown.get("permissions") or {}, f"{repository.partition('/')[0]} grants", hint)


def check_last_delivery(app: Connection) -> Iterator[CheckItem]:
    """How the newest delivery fared."""
    newest = next(app.pages("/app/hook/deliveries"), None)
    if newest is None:
        yield CheckItem(True, "GitHub has delivered nothing yet")
        return
    status = newest["status_code"]
    what = f"The last delivery, {newest['event']} at {newest['delivered_at']}, was answered {status or 'not at all'}"
    yield CheckItem(200 <= status < 300, what, DELIVERY_HINTS.get(status, "See Advanced on the App's settings page."))


DELIVERY_HINTS = {
    0: "GitHub could not reach the site: look at its address, its certificate, its firewall.",
    401: "The secret at GitHub is not GITHUB_WEBHOOK_SECRET: manage.py connect_github --fix sets it.",
    404: "The webhook's address is not this site's.",
    415: "The webhook must send application/json.",
    503: "The site had no GITHUB_WEBHOOK_SECRET.",
}


def fix_webhook(app: Connection) -> None:
    """Set the webhook of the App as it should be."""
    wanted = {
        "url": get_webhook_url(),
        "content_type": "json",
        "insecure_ssl": "0",
        "secret": settings.GITHUB_WEBHOOK_SECRET,
    }
    app.send("PATCH", "/app/hook/config", wanted)


def redeliver_newest(app: Connection) -> CheckItem:
    """Have GitHub send its newest delivery again, and see that it arrives and is answered."""
    newest = next(app.pages("/app/hook/deliveries"), None)
    if newest is None:
        return CheckItem(
            False, "A redelivery arrives", "There is nothing to send again: open a pull request, or comment on one."
        )
    app.send("POST", f"/app/hook/deliveries/{newest['id']}/attempts")
    ends = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < ends:
        again = next(app.pages("/app/hook/deliveries"))
        if again["id"] != newest["id"] and again["guid"] == newest["guid"]:
            arrived = Delivery.objects.filter(guid=newest["guid"]).exists()
            good = arrived and 200 <= again["status_code"] < 300
            hint = DELIVERY_HINTS.get(again["status_code"], "It was answered by something that is not this site.")
            return CheckItem(good, f"A redelivery arrives and is answered {again['status_code']}", hint)
        time.sleep(POLL_SECONDS)
    return CheckItem(False, "A redelivery arrives", f"GitHub has not sent it within {TIMEOUT_SECONDS:.0f} seconds.")


# --- a plain token ----------------------------------------------------------------------------------------------------


def check_token(connection: Connection, repository: str) -> Iterator[CheckItem]:
    yield CheckItem(True, f"GitHub knows the owner of our token: {connection.get('/user')['login']}")
    if not repository:
        return
    rights = connection.get(f"/repos/{repository}").get("permissions") or {}
    hint = "Give its owner the role Write: commit statuses and folded comments need it."
    yield CheckItem(bool(rights.get("push")), f"The token may write to {repository}", hint)
    try:
        hooks = list(connection.pages(f"/repos/{repository}/hooks"))
    except PermanentError:
        yield CheckItem(True, "The token may not look at webhooks: see to it that one sends to " + get_webhook_url())
        return
    ours = next((row for row in hooks if get_nested(row, "config", "url") == get_webhook_url()), None)
    yield CheckItem(
        ours is not None,
        f"A webhook sends to {get_webhook_url()}",
        "Add it: Settings, Webhooks, application/json, our secret.",
    )
    if ours is not None:
        yield from check_hook(ours["config"])
        for event in sorted(set(EVENTS) - set(ALWAYS_SENT) - {"check_run"}):
            yield CheckItem(
                bool({event, "*"} & set(ours["events"])), f"The webhook hears of {event}", "Edit the webhook's events."
            )


# --- manage.py check --------------------------------------------------------------------------------------------------


def check_github_settings(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Settings of which one makes no sense without the other."""
    found: list[CheckMessage] = []
    if bool(settings.GITHUB_APP_ID) != bool(settings.GITHUB_PRIVATE_KEY):
        hint = "Set both GITHUB_APP_ID and GITHUB_PRIVATE_KEY, or neither."
        found.append(Warning("The GitHub App is half configured.", hint=hint, id="github.W001"))
    if (settings.GITHUB_APP_ID or settings.GITHUB_TOKEN) and not settings.GITHUB_WEBHOOK_SECRET:
        hint = "Set GITHUB_WEBHOOK_SECRET: without it the site hears of no pull request."
        found.append(Warning("The webhook has no secret.", hint=hint, id="github.W002"))
    return found
