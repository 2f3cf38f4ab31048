"""Malformed and oversized requests without an account: answered with 4xx, never with a server error."""

from __future__ import annotations

import re

import httpx
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver
from pytest_django import Settings

from leaderboard.models import Entry
from tests.support import scene
from tests.support.routes import list_patterns
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.django_db]


@pytest.fixture
def client() -> Client:
    """Answer a server error with 500, as in production; the test client raises the exception otherwise."""
    return Client(raise_request_exception=False)


def test_request_with_null_byte_in_address_is_refused(client: Client) -> None:
    for path in (
        "/?q=a%00b",
        "/queue/?%00=1",
        "/tracks/%00/",
        "/static/%00.css",
        "/api/v1/runs?track=%00",
        "/admin/%00",
    ):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["detail"]) == (400, "The address contains a null byte."), path
    assert client.get("/?q=%2500").status_code == 200, "an escaped percent sign is no null byte"


def test_session_cookie_with_null_byte_is_refused(client: Client) -> None:
    client.cookies["sessionid"] = "\0" + "a" * 31  # sent as "\\000aaa...", which Django decodes

    answer = client.get("/accounts/login/")

    assert (answer.status_code, answer.json()["detail"]) == (400, "The cookie contains a null byte.")


def test_null_byte_in_the_reason_of_a_rejection_is_refused(client: Client) -> None:
    entry = scene.create_night_board()["entry"]
    Entry.objects.filter(pk=entry.pk).update(state=Entry.State.PROPOSED)
    client.force_login(User.objects.create_superuser("mara"))

    answer = client.post(f"/admin/leaderboard/entry/{entry.pk}/reject/", {"reason": "It opens\0a socket."})

    assert answer.status_code == 400
    entry.refresh_from_db()
    assert (entry.state, entry.reason) == (Entry.State.PROPOSED, "")


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize("number", [2**31, 2**63, "9" * 5000])
@pytest.mark.parametrize("role", ["visitor", "superuser"])
def test_number_in_address_that_no_row_has_is_refused(client: Client, role: str, number: int | str) -> None:
    if role == "superuser":
        client.force_login(User.objects.create_superuser("mara"))
    routes = [route for route in list_patterns(get_resolver()) if "<int:" in route or "<path:object_id>" in route]
    assert len(routes) > 100

    for route in routes:
        address = "/" + re.sub(r"<(?:int:\w+|path:object_id)>", str(number), route)
        address = re.sub(r"<\w+:(\w+)>", "x", address).replace("<sha256>", "0" * 64)
        for method in ("get", "post"):
            status = getattr(client, method)(address).status_code
            assert status < 500, f"{method} {address}: {status}"


REGISTER = "/api/node/v1/register"
UPLOAD = "/api/node/v1/leases/1/blobs/" + "0" * 64


def test_bodies_are_limited_and_not_read_without_a_token(site_url: str, settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE, settings.BLOB_MAX_BYTES = 10_000, 100_000
    headers = {"Authorization": "Bearer unknown", "Content-Type": "application/json"}
    for path in (REGISTER, "/api/v1/runs"):
        response = httpx.post(f"{site_url}{path}", content=b"x" * 10_001, headers=headers, timeout=WAIT_SECONDS)
        assert response.status_code in (401, 413)
        assert response.json()["detail"]
    pieces = iter([b"x" * 1000] * 20)  # without a Content-Length
    assert httpx.post(f"{site_url}{REGISTER}", content=pieces, timeout=WAIT_SECONDS).status_code == 413
    for size in (20_000, 100_001):
        assert httpx.put(site_url + UPLOAD, content=b"x" * size, timeout=WAIT_SECONDS).status_code == 401
    response = httpx.get(f"{site_url}/healthz", timeout=WAIT_SECONDS)
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert response.json() == {"status": "ok"}
