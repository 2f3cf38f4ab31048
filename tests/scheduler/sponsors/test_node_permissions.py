"""Permissions for node actions on the sponsors' pages: the owner, and maintainers with two-factor sign-in."""

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
UNBAN = Action("resume", {"state": "banned"}, lambda node: node.state == "offline")


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
        code = format_hotp_value(hotp_value(TOTP_SECRET, list(yield_hotp_counters_from_time())[1]))
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
    ("role", "status"),
    [("owner", 302), ("other", 404), ("coordinator", 404), ("maintainer", 403), ("maintainer-with-code", 302)],
)
@pytest.mark.parametrize("name", ACTIONS)
def test_node_action_by_role_is_allowed_for_owner_and_verified_maintainer(
    owner: User, name: str, role: str, status: int
) -> None:
    action = ACTIONS[name]
    node, _ = create_node(owner=owner, **action.starts_as)
    client = sign_in_as(role, owner)

    response = post_node_action(client, node, action)

    node.refresh_from_db()
    assert (response.status_code, action.is_done(node)) == (status, status == 302)
    assert Event.objects.about(node).exists() == (status == 302)
    assert (f"join-{node.pk}" in client.cookies) == (name == "rotate" and status == 302)


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 302), ("other", 404), ("coordinator", 404), ("maintainer", 403), ("maintainer-with-code", 302)],
)
def test_node_deletion_by_role_is_allowed_for_owner_and_verified_maintainer(
    owner: User, role: str, status: int
) -> None:
    node = Node.objects.create(name="loco", owner=owner)

    response = sign_in_as(role, owner).post(f"/sponsors/nodes/{node.pk}/forget/")

    assert (response.status_code, Node.objects.exists()) == (status, status != 302)


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 403), ("other", 404), ("coordinator", 404), ("maintainer", 403), ("maintainer-with-code", 302)],
)
def test_node_ban_by_role_is_lifted_by_verified_maintainer_only(owner: User, role: str, status: int) -> None:
    node, _ = create_node(owner=owner, **UNBAN.starts_as)

    response = post_node_action(sign_in_as(role, owner), node, UNBAN)

    node.refresh_from_db()
    assert (response.status_code, UNBAN.is_done(node)) == (status, status == 302)


@pytest.mark.parametrize("role", ["coordinator", "maintainer"])
def test_node_ban_of_own_node_without_second_step_stays(owner: User, role: str) -> None:
    permissions.grant_role(owner, role, None)
    node, _ = create_node(owner=owner, **UNBAN.starts_as)
    client = sign_in(owner)

    assert post_node_action(client, node, UNBAN).status_code == 403
    assert "/resume/" not in client.get(f"/sponsors/nodes/{node.pk}/").content.decode()

    node.refresh_from_db()
    assert node.state == Node.State.BANNED


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 200), ("other", 404), ("coordinator", 404), ("maintainer", 403), ("maintainer-with-code", 200)],
)
@pytest.mark.parametrize("page", ["", "live.json", "settings/"])
def test_node_page_by_role_is_shown_to_owner_and_verified_maintainer(
    owner: User, page: str, role: str, status: int
) -> None:
    node, _ = create_node(owner=owner, state="online")

    assert sign_in_as(role, owner).get(f"/sponsors/nodes/{node.pk}/{page}").status_code == status


def test_node_settings_without_public_name_can_be_saved_by_maintainer(owner: User) -> None:
    node, _ = create_node(owner=owner, state="online")
    address = f"/sponsors/nodes/{node.pk}/settings/"
    settings_data = {
        "lanes": "together", "available": "always", "timezone": "UTC", "serves": "everyone", "max_hours": "3",
        "shown": "name", "sponsor_name": "",
    }  # fmt: skip
    client = sign_in_as("maintainer-with-code", owner)

    assert 'name="sponsor_name"' not in client.get(address).content.decode()
    assert client.post(address, settings_data).status_code == 302

    node.refresh_from_db()
    assert node.max_hours == 3
    assert not Sponsor.objects.exists()
    page = sign_in_as("owner", owner).post(address, settings_data)
    assert b"Enter a name, or choose to stay anonymous." in page.content


def test_node_page_without_second_step_requires_a_code(owner: User) -> None:
    node, _ = create_node(owner=owner, state="online")

    page = sign_in_as("maintainer", owner).get(f"/sponsors/nodes/{node.pk}/").content.decode()

    assert "Sign in with a code from your authenticator app" in page


def test_node_action_without_two_factor_setting_is_allowed_for_maintainer(owner: User, settings: Settings) -> None:
    settings.STAFF_TWO_STEP = False
    node, _ = create_node(owner=owner, state="online")

    assert post_node_action(sign_in_as("maintainer", owner), node, ACTIONS["drain"]).status_code == 302
