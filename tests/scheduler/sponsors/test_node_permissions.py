"""Permissions for node actions on the sponsors' pages: the owner, and maintainers with two-factor sign-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import time_machine
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from leaderboard import permissions
from scheduler.models import Event, JoinToken, Node, Sponsor
from tests.support.pool import create_node

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery staple"
TOTP_SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
SETTINGS = {
    "available": "always",
    "timezone": "UTC",
    "serves": "everyone",
    "lanes": "together",
    "shown": "anonymous",
    "max_hours": "7",
}


@dataclass(frozen=True)
class Action:
    """A form on a node's page."""

    path: str
    starts_as: dict[str, Any]
    """Columns of the node before the action."""
    is_done: Callable[[Node], bool]
    data: dict[str, str] | None = None


ACTIONS = {
    "test": Action("test", {"state": "failing", "failures": 3}, lambda node: node.failures == 0),
    "drain": Action("drain", {"state": "online"}, lambda node: node.state == "draining"),
    "pause": Action("pause", {"state": "online"}, lambda node: node.state == "paused"),
    "resume": Action("resume", {"state": "paused"}, lambda node: node.state == "offline"),
    "revoke": Action("revoke", {"state": "online"}, lambda node: node.token_hash is None),
    "rotate": Action("rotate", {"state": "online"}, lambda node: JoinToken.objects.filter(renews=node).exists()),
    "settings": Action("settings", {"state": "online"}, lambda node: node.max_hours == 7, SETTINGS),
}


@pytest.fixture(autouse=True)
def _two_factor_required(settings: Settings) -> None:
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
        with time_machine.travel(datetime.now(UTC), tick=False):  # the code's 30 seconds must not end here
            code = format_hotp_value(hotp_value(TOTP_SECRET, next(yield_hotp_counters_from_time())))
            client.post("/accounts/two-step/code/", {"code": code})
    assert client.session["_auth_user_id"] == str(user.pk)
    return client


def sign_in_as(role: str, owner: User) -> Client:
    """Sign in as owner, other, coordinator, maintainer (password only) or maintainer-with-code."""
    if role == "owner":
        return sign_in(owner)
    user = User.objects.create_user("bob", password=PASSWORD)
    if role != "other":
        permissions.grant_role(user, role.removesuffix("-with-code"), None)
    return sign_in(user, with_code=role.endswith("-with-code"))


def post_node_action(client: Client, node: Node, action: Action) -> HttpResponse:
    return client.post(f"/sponsors/nodes/{node.pk}/{action.path}/", action.data or {})


@pytest.mark.parametrize(
    ("role", "status", "unban_status"),
    [
        ("owner", 302, 403),
        ("other", 404, 404),
        ("coordinator", 404, 404),
        ("maintainer", 403, 403),
        ("maintainer-with-code", 302, 302),
    ],
)
def test_node_is_for_its_owner_and_verified_maintainers_who_alone_lift_bans(
    owner: User, role: str, status: int, unban_status: int
) -> None:
    client = sign_in_as(role, owner)
    for name, action in ACTIONS.items():
        node, _ = create_node(name, owner=owner, **action.starts_as)
        response = post_node_action(client, node, action)
        node.refresh_from_db()
        assert (response.status_code, action.is_done(node)) == (status, status == 302), name
        assert Event.objects.about(node).exists() == (status == 302), name
        assert (f"join-{node.pk}" in client.cookies) == (name == "rotate" and status == 302)
    for page in ("", "live.json", "settings/"):
        response = client.get(f"/sponsors/nodes/{node.pk}/{page}")
        assert response.status_code == (200 if status == 302 else status), page
        if role == "maintainer" and not page:
            assert "Sign in with a code from your authenticator app" in response.content.decode()
    banned, _ = create_node("banned", owner=owner, state="banned")
    assert post_node_action(client, banned, ACTIONS["resume"]).status_code == unban_status
    banned.refresh_from_db()
    assert banned.state == ("offline" if unban_status == 302 else "banned")
    unjoined = Node.objects.create(name="unjoined", owner=owner)
    assert client.post(f"/sponsors/nodes/{unjoined.pk}/forget/").status_code == status
    assert Node.objects.filter(pk=unjoined.pk).exists() == (status != 302)


def test_node_ban_of_own_node_without_second_step_stays(owner: User) -> None:
    permissions.grant_role(owner, "maintainer", None)
    node, _ = create_node(owner=owner, state="banned")
    client = sign_in(owner)
    assert post_node_action(client, node, ACTIONS["resume"]).status_code == 403
    assert "/resume/" not in client.get(f"/sponsors/nodes/{node.pk}/").content.decode()
    node.refresh_from_db()
    assert node.state == Node.State.BANNED


def test_node_settings_without_public_name_can_be_saved_by_maintainer(owner: User) -> None:
    node, _ = create_node(owner=owner, state="online")
    address = f"/sponsors/nodes/{node.pk}/settings/"
    data = {**SETTINGS, "shown": "name", "sponsor_name": ""}
    client = sign_in_as("maintainer-with-code", owner)
    assert 'name="sponsor_name"' not in client.get(address).content.decode()
    assert client.post(address, data).status_code == 302
    node.refresh_from_db()
    assert node.max_hours == 7
    assert not Sponsor.objects.exists()
    assert b"Enter a name, or choose to stay anonymous." in sign_in_as("owner", owner).post(address, data).content
