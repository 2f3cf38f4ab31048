"""Permissions: every address of the site, with GET and POST, for thirteen kinds of users, on objects of others.

The statuses are compared with `permission_matrix.txt`, so that a change of a permission is seen in its review. Write
the file anew with `RENEW_MATRIX=1 pytest tests/site/test_permission_matrix.py`, and read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import get_resolver

from dailytrain.two_factor import SETUP_KEY
from leaderboard import permissions
from leaderboard.actions import RUN_ACTIONS
from leaderboard.models import Subscription
from leaderboard.rankings.standings_store import recompute_stale_standings
from scheduler.campaigns.models import Volunteer
from scheduler.models import Node
from scheduler.sponsors.views import ACTIONS as NODE_ACTIONS
from tests.support import scene
from tests.support.routes import list_patterns

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.stored_standings]

MATRIX = Path(__file__).with_name("permission_matrix.txt")
ROLES = {
    "visitor": (),
    "user": (),
    "author": (),  # of the entry and of its runs
    "owner": (),  # of the node and of the subscription
    "sponsor": (),  # of another node
    "volunteer": (),
    "core": (permissions.CORE,),
    "coordinator": (permissions.COORDINATOR,),
    "coordinator-2": (permissions.COORDINATOR,),  # -2: has passed the second factor in this session
    "maintainer": (permissions.MAINTAINER,),
    "maintainer-2": (permissions.MAINTAINER,),
    "superuser": (),
    "superuser-2": (),
}
PER_SESSION = ("accounts/", "notices/", "admin/login/", "admin/logout/", "admin/jsi18n/", "try/", "api/node/")
"""Not here: pages about the user's own session, and calls whose tokens have tests of their own."""
LEFT_OUT = ("<path:object_id>/", "/history/", "(?P<url>.*)", "readyz")  # /readyz: public, and 503 in tests
SIGN_IN = {"/login/": "login", "/accounts/two-step/": "code", "/accounts/reauthenticate/": "code"}
CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>[^)]*\)")


@pytest.fixture
def site(settings: Any) -> dict[str, Any]:
    """Fill the site; return the values of the parts of addresses."""
    settings.STAFF_TWO_STEP = True
    settings.PAGE_CACHE_SECONDS = 0
    settings.GITHUB_WEBHOOK_SECRET = "a secret"
    night = scene.create_night_board()
    recompute_stale_standings()
    users = {name: create_user(name, roles) for name, roles in ROLES.items() if name != "visitor"}
    night["entry"].requested_by = users["author"]
    night["entry"].save()
    Node.objects.filter(pk=night["node"].pk).update(owner=users["owner"])
    Node.objects.create(name="another", owner=users["sponsor"])
    Volunteer.objects.create(user=users["volunteer"], name="volunteer")
    letter = Subscription.objects.create(user=users["owner"], kind="email", address="owner@example.org")
    return {
        "users": users, "entry_id": night["entry"].pk, "run_id": night["best"].pk, "node_id": night["node"].pk,
        "track_id": night["track"].pk, "season_id": night["track"].season_id,
        "subscription_id": letter.pk, "sponsor_id": users["owner"].pk, "part": 1,
        "tracks": night["track"].slug, "action": "end", "campaigns": night["campaign"].slug,
    }  # fmt: skip


def create_user(name: str, roles: tuple[str, ...]) -> User:
    user = User.objects.create_user(name, is_superuser=name.startswith("superuser"), is_staff=name.startswith("super"))
    for role in roles:
        permissions.grant_role(user, role, None)
    return user


def sign_in(role: str, users: dict[str, User]) -> Client:
    client = Client(raise_request_exception=False)
    if role in users:
        client.force_login(users[role])
        if role.endswith("-2"):
            session = client.session
            session[SETUP_KEY] = users[role].pk
            session.save()
    return client


# --- addresses -------------------------------------------------------------------------------------------------------


def list_routes() -> list[str]:
    """Return the routes of the matrix, with one row for each action of a node and of a run."""
    routes: list[str] = []
    for route in dict.fromkeys(list_patterns(get_resolver())):
        is_personal = route.startswith(PER_SESSION) and not route.startswith("accounts/notices/")
        if is_personal or route.endswith(LEFT_OUT):
            continue
        actions = NODE_ACTIONS if "nodes/" in route else RUN_ACTIONS if "/ask/" in route else ()
        if "<slug:action>" in route and actions:
            routes += [route.replace("<slug:action>", action) for action in actions]
        else:
            routes.append(route)
    return sorted(routes)


def list_methods(route: str) -> tuple[str, ...]:
    """Return the methods to try. The admin checks one permission for both methods of a form."""
    if route.startswith("admin/") and route.endswith(
        ("/add/", "/<path:object_id>/change/", "/<path:object_id>/delete/")
    ):
        return ("POST",)
    return ("GET",) if route.startswith("admin/") and len(route.split("/")) == 4 else ("GET", "POST")


def fill_in(route: str, values: dict[str, Any]) -> str:
    """Return an address that leads to an existing object where the site has one."""
    parts = route.split("/")

    def find_value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name == "app_label":
            return parts[1] if parts[0] != "admin" else "leaderboard"
        if name in ("object_id", "id"):
            first = apps.get_model(parts[1], parts[2])._default_manager.first()
            return str(first.pk if first else 1)
        return str(values.get(name) or values.get(parts[0 if parts[0] != "api" else 2]) or "x")

    return "/" + CONVERTER.sub(find_value, route)


# --- the matrix ------------------------------------------------------------------------------------------------------


def request_and_undo(client: Client, method: str, address: str) -> str:
    """Return the status of a request and undo its changes to the database; "login" or "code" for redirects there."""
    with transaction.atomic():
        response = client.generic(method, address, content_type="application/x-www-form-urlencoded")
        transaction.set_rollback(True)
    assert response.status_code < 500, f"{method} {address}: {response.status_code}"
    location = response.headers.get("Location", "")
    return next((name for path, name in SIGN_IN.items() if path in location), str(response.status_code))


def build_row(route: str, method: str, clients: dict[str, Client], values: dict[str, Any]) -> str:
    """Return the statuses by role, as groups of roles with the same status."""
    address = fill_in(route, values)
    groups: dict[str, list[str]] = {}
    for role, client in clients.items():
        status = request_and_undo(client, method, address)
        if (role, method, status) == ("visitor", "GET", "200"):
            return f"{method} {route}: public"
        groups.setdefault(status, []).append(role)
    found = [f"{status} {'all' if len(groups) == 1 else ' '.join(roles)}" for status, roles in groups.items()]
    return f"{method} {route}: {'; '.join(found)}"


def test_permissions_of_every_address_are_those_of_the_matrix(site: dict[str, Any]) -> None:
    clients = {role: sign_in(role, site["users"]) for role in ROLES}
    rows = [build_row(route, method, clients, site) for route in list_routes() for method in list_methods(route)]
    if os.environ.get("RENEW_MATRIX"):
        MATRIX.write_text("\n".join(rows) + "\n")
    assert rows == MATRIX.read_text().splitlines()


@pytest.mark.services
def test_every_address_answers_a_superuser(site: dict[str, Any]) -> None:
    """The matrix is of SQLite: another database does not change permissions. It may refuse a query."""
    client = sign_in("superuser-2", site["users"])
    for route in list_routes():
        for method in list_methods(route):
            request_and_undo(client, method, fill_in(route, site))
