"""Actions on a node from the sponsors' pages: for its owner, and for maintainers after the second step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from leaderboard import permissions
from scheduler.models import Event, JoinToken, Node
from tests.support.pool import make_node

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery staple"
TOTP_SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
WISHES = {
    "available": "always",
    "timezone": "UTC",
    "serves": "everyone",
    "lanes": "together",
    "shown": "anonymous",
    "max_hours": "7",
}


@dataclass(frozen=True)
class Action:
    """One form of a node's page."""

    path: str
    starts_as: dict[str, Any]
    """Columns of the node before the action."""
    is_done: Callable[[Node], bool]
    data: dict[str, str] | None = None


ACTIONS = {
    "drain": Action("drain", {"state": "online"}, lambda node: node.state == "draining"),
    "pause": Action("pause", {"state": "online"}, lambda node: node.state == "paused"),
    "resume": Action("resume", {"state": "paused"}, lambda node: node.state == "offline"),
    "revoke": Action("revoke", {"state": "online"}, lambda node: node.token_hash is None),
    "rotate": Action("rotate", {"state": "online"}, lambda node: JoinToken.objects.filter(renews=node).exists()),
    "wishes": Action("wishes", {"state": "online"}, lambda node: node.max_hours == 7, WISHES),
}
UNBAN = Action("resume", {"state": "banned"}, lambda node: node.state == "offline")


@pytest.fixture(autouse=True)
def _second_step_is_required(settings: Settings) -> None:
    settings.STAFF_TWO_STEP = True


@pytest.fixture
def owner() -> User:
    return User.objects.create_user("ada", password=PASSWORD)


def sign_in(user: User, *, with_code: bool = False) -> Client:
    """Sign in with the password, and with a code where the user has set up an authenticator."""
    client = Client()
    if with_code:
        TOTP.activate(user, TOTP_SECRET)
    client.post("/accounts/login/", {"login": user.username, "password": PASSWORD})
    if with_code:
        code = format_hotp_value(hotp_value(TOTP_SECRET, list(yield_hotp_counters_from_time())[1]))
        client.post("/accounts/two-step/code/", {"code": code})
    assert client.session["_auth_user_id"] == str(user.pk)
    return client


def client_of(who: str, owner: User) -> Client:
    """Return a browser of: owner, stranger, coordinator, maintainer (before the second step), maintainer-with-code."""
    if who == "owner":
        return sign_in(owner)
    user = User.objects.create_user("bob", password=PASSWORD)
    if who != "stranger":
        permissions.grant_role(user, who.removesuffix("-with-code"), None)
    return sign_in(user, with_code=who.endswith("-with-code"))


def act(client: Client, node: Node, action: Action) -> HttpResponse:
    return client.post(f"/sponsors/nodes/{node.pk}/{action.path}/", action.data or {})


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 302), ("stranger", 404), ("coordinator", 404), ("maintainer", 403), ("maintainer-with-code", 302)],
)
@pytest.mark.parametrize("name", ACTIONS)
def test_node_action_is_for_owner_and_verified_maintainer(owner: User, name: str, who: str, status: int) -> None:
    action = ACTIONS[name]
    node, _ = make_node(owner=owner, **action.starts_as)
    client = client_of(who, owner)

    answer = act(client, node, action)

    node.refresh_from_db()
    assert (answer.status_code, action.is_done(node)) == (status, status == 302)
    assert Event.objects.about(node).exists() == (status == 302)
    assert (f"join-{node.pk}" in client.cookies) == (name == "rotate" and status == 302)


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 302), ("stranger", 404), ("coordinator", 404), ("maintainer", 403), ("maintainer-with-code", 302)],
)
def test_node_forget_is_for_owner_and_verified_maintainer(owner: User, who: str, status: int) -> None:
    node = Node.objects.create(name="loco", owner=owner)

    answer = client_of(who, owner).post(f"/sponsors/nodes/{node.pk}/forget/")

    assert (answer.status_code, Node.objects.exists()) == (status, status != 302)


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 403), ("stranger", 404), ("coordinator", 404), ("maintainer", 403), ("maintainer-with-code", 302)],
)
def test_node_ban_is_lifted_by_verified_maintainer_only(owner: User, who: str, status: int) -> None:
    node, _ = make_node(owner=owner, **UNBAN.starts_as)

    answer = act(client_of(who, owner), node, UNBAN)

    node.refresh_from_db()
    assert (answer.status_code, UNBAN.is_done(node)) == (status, status == 302)


@pytest.mark.parametrize("role", ["coordinator", "maintainer"])
def test_node_ban_of_own_node_stays_without_second_step(owner: User, role: str) -> None:
    permissions.grant_role(owner, role, None)
    node, _ = make_node(owner=owner, **UNBAN.starts_as)
    client = sign_in(owner)

    assert act(client, node, UNBAN).status_code == 403
    assert "/resume/" not in client.get(f"/sponsors/nodes/{node.pk}/").content.decode()

    node.refresh_from_db()
    assert node.state == Node.State.BANNED


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 200), ("stranger", 404), ("coordinator", 404), ("maintainer", 403), ("maintainer-with-code", 200)],
)
@pytest.mark.parametrize("page", ["", "live.json", "wishes/"])
def test_node_page_is_for_owner_and_verified_maintainer(owner: User, page: str, who: str, status: int) -> None:
    node, _ = make_node(owner=owner, state="online")

    assert client_of(who, owner).get(f"/sponsors/nodes/{node.pk}/{page}").status_code == status


def test_node_page_without_second_step_says_what_is_missing(owner: User) -> None:
    node, _ = make_node(owner=owner, state="online")

    page = client_of("maintainer", owner).get(f"/sponsors/nodes/{node.pk}/").content.decode()

    assert "Sign in with a code from your authenticator app" in page


def test_node_action_where_no_second_step_is_required_is_for_maintainer(owner: User, settings: Settings) -> None:
    settings.STAFF_TWO_STEP = False
    node, _ = make_node(owner=owner, state="online")

    assert act(client_of("maintainer", owner), node, ACTIONS["drain"]).status_code == 302
