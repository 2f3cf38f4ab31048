"""Checks of the connection to GitHub, for `manage.py connect_github` and `manage.py check`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning

from leaderboard.integrations.github import client
from leaderboard.integrations.github.connection import Connection, NotFoundError, PlainToken
from leaderboard.integrations.github.deliveries import EVENTS, get_nested
from leaderboard.models import Delivery
from leaderboard.outbox import PermanentError, RetryLater
from scheduler.site_address import is_local_site

# What the App needs. Comments are written with `issues`, and on a pull request with `pull_requests`, too.
PERMISSIONS = {"checks": "write", "contents": "read", "issues": "write", "metadata": "read", "pull_requests": "write"}
LEVELS = ("", "read", "write", "admin")
ALWAYS_SENT = ("installation", "installation_repositories")
SECRET_LENGTH = 20
POLL_SECONDS, TIMEOUT_SECONDS = 0.5, 20.0


@dataclass(frozen=True)
class CheckItem:
    ok: bool
    what: str
    hint: str = ""  # what to do if it is not ok


def check_connection() -> Iterator[CheckItem]:
    """Yield all checks, except those that depend on something missing."""
    yield from check_settings()
    repository = client.get_main_repository()
    try:
        if client.has_app():
            yield from check_app(client.connect_app(), repository)
        elif settings.GITHUB_TOKEN:
            yield from check_token(Connection(PlainToken()), repository)
    except (PermanentError, RetryLater) as error:
        yield CheckItem(False, "GitHub answers", str(error))


def get_webhook_url() -> str:
    return f"{settings.SITE_URL}/github/webhook"


def check_settings() -> Iterator[CheckItem]:
    repository, configured = client.get_main_repository(), client.get_configured_repository()
    is_current = bool(repository) and repository.lower() == configured.lower()
    hint = f"It is now {repository}: set GITHUB_REPOSITORY and MAIN_REPOSITORY." if repository else ""
    hint = hint or "Set GITHUB_REPOSITORY to owner/name."
    yield CheckItem(is_current, f"The repository: {configured or 'none'}", hint)
    reachable = settings.SITE_URL.startswith("https://") and not is_local_site()
    hint = "Set SITE_URL to the https address that GitHub can reach."
    yield CheckItem(reachable, f"The site's address: {settings.SITE_URL}", hint)
    hint = "Set GITHUB_WEBHOOK_SECRET to a long random text (openssl rand -hex 32), and the same at GitHub."
    yield CheckItem(len(settings.GITHUB_WEBHOOK_SECRET) >= SECRET_LENGTH, "The webhook's secret", hint)
    app = f"App {settings.GITHUB_APP_ID}" if client.has_app() else ""
    is_half_configured = bool(settings.GITHUB_APP_ID) != bool(settings.GITHUB_PRIVATE_KEY)
    credentials = app or ("a plain token" if settings.GITHUB_TOKEN else "none")
    hint = (
        "Set GITHUB_APP_ID and GITHUB_PRIVATE_KEY (or GITHUB_PRIVATE_KEY_FILE) or GITHUB_TOKEN: docs/how-to/github.md"
    )
    yield CheckItem(credentials != "none" and not is_half_configured, f"Credentials: {credentials}", hint)


# --- an App -----------------------------------------------------------------------------------------------------------


def check_app(app: Connection, repository: str) -> Iterator[CheckItem]:
    shown = app.get("/app")
    yield CheckItem(True, f"GitHub knows our App: {shown['slug']}")
    page = f"on the settings of {shown.get('html_url') or 'the App'}."
    yield from check_permissions(shown.get("permissions") or {}, "The App asks for", f"Grant it {page}")
    for event in sorted(set(EVENTS) - set(ALWAYS_SENT)):
        yield CheckItem(event in shown["events"], f"The App hears of {event}", f"Subscribe to it {page}")
    yield from check_hook(app.get("/app/hook/config"))
    if repository:
        yield from check_installation(app, repository)
    yield from check_last_delivery(app)


def check_permissions(granted: Mapping[str, str], who: str, hint: str) -> Iterator[CheckItem]:
    for name, level in PERMISSIONS.items():
        has = granted.get(name, "")
        yield CheckItem(has in LEVELS and LEVELS.index(has) >= LEVELS.index(level), f"{who} {name}: {level}", hint)


def check_hook(config: Mapping[str, Any]) -> Iterator[CheckItem]:
    hint = "manage.py connect_github --fix sets it at GitHub, if we are an App."
    what = f"The webhook's address: {config.get('url') or 'none'}"
    yield CheckItem(config.get("url") == get_webhook_url(), what, f"It should be {get_webhook_url()}. {hint}")
    yield CheckItem(config.get("content_type") == "json", "The webhook sends application/json", hint)
    yield CheckItem(str(config.get("insecure_ssl", "0")) == "0", "The webhook checks our certificate", hint)
    yield CheckItem(bool(config.get("secret")), "The webhook has a secret", hint)


def check_installation(app: Connection, repository: str) -> Iterator[CheckItem]:
    what = f"The App is installed for {repository}"
    try:
        shown = app.get(f"/repos/{repository}/installation")
    except NotFoundError:
        yield CheckItem(False, what, "Install it: on the App's page, Install App.")
        return
    yield CheckItem(not shown.get("suspended_at"), what, "It is suspended: unsuspend it on GitHub.")
    hint = "Its owner has to accept the App's new permissions: Settings, GitHub Apps, Configure."
    yield from check_permissions(shown.get("permissions") or {}, f"{repository.partition('/')[0]} grants", hint)


def check_last_delivery(app: Connection) -> Iterator[CheckItem]:
    newest = next(app.iterate_pages("/app/hook/deliveries"), None)
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
    config = {"url": get_webhook_url(), "content_type": "json", "insecure_ssl": "0"}
    app.send("PATCH", "/app/hook/config", {**config, "secret": settings.GITHUB_WEBHOOK_SECRET})


def redeliver_newest(app: Connection) -> CheckItem:
    """Let GitHub send its newest delivery again, and check that it arrives and is answered."""
    newest = next(app.iterate_pages("/app/hook/deliveries"), None)
    if newest is None:
        hint = "There is nothing to send again: open a pull request, or comment on one."
        return CheckItem(False, "A redelivery arrives", hint)
    app.send("POST", f"/app/hook/deliveries/{newest['id']}/attempts")
    ends = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < ends:
        again = next(app.iterate_pages("/app/hook/deliveries"))
        if again["id"] != newest["id"] and again["guid"] == newest["guid"]:
            arrived = Delivery.objects.filter(guid=newest["guid"]).exists()
            hint = DELIVERY_HINTS.get(again["status_code"], "It was answered by something that is not this site.")
            what = f"A redelivery arrives and is answered {again['status_code']}"
            return CheckItem(arrived and 200 <= again["status_code"] < 300, what, hint)
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
        hooks = list(connection.iterate_pages(f"/repos/{repository}/hooks"))
    except PermanentError:
        yield CheckItem(True, "The token may not look at webhooks: see to it that one sends to " + get_webhook_url())
        return
    ours = next((row for row in hooks if get_nested(row, "config", "url") == get_webhook_url()), None)
    hint = "Add it: Settings, Webhooks, application/json, our secret."
    yield CheckItem(ours is not None, f"A webhook sends to {get_webhook_url()}", hint)
    if ours is not None:
        yield from check_hook(ours["config"])
        for event in sorted(set(EVENTS) - set(ALWAYS_SENT) - {"check_run"}):
            is_sent = bool({event, "*"} & set(ours["events"]))
            yield CheckItem(is_sent, f"The webhook hears of {event}", "Edit the webhook's events.")


# --- manage.py check --------------------------------------------------------------------------------------------------


def check_github_settings(app_configs: Any, **options: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if bool(settings.GITHUB_APP_ID) != bool(settings.GITHUB_PRIVATE_KEY):
        hint = "Set both GITHUB_APP_ID and GITHUB_PRIVATE_KEY, or neither."
        found.append(Warning("The GitHub App is half configured.", hint=hint, id="github.W001"))
    if (settings.GITHUB_APP_ID or settings.GITHUB_TOKEN) and not settings.GITHUB_WEBHOOK_SECRET:
        hint = "Set GITHUB_WEBHOOK_SECRET: without it the site hears of no pull request."
        found.append(Warning("The webhook has no secret.", hint=hint, id="github.W002"))
    return found
