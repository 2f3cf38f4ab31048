"""The site over a real socket: body limits, static files, headers."""

from __future__ import annotations

import httpx
import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.processes

REGISTER = "/api/node/v1/register"
UPLOAD = "/api/node/v1/leases/1/blobs/" + "0" * 64


@pytest.fixture(autouse=True)
def _small_limits(settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10_000
    settings.BLOB_MAX_BYTES = 100_000


@pytest.mark.parametrize("path", [REGISTER, "/api/v1/runs"])
def test_body_over_limit_is_refused(site_url: str, path: str) -> None:
    headers = {"Authorization": "Bearer unknown", "Content-Type": "application/json"}
    response = httpx.post(f"{site_url}{path}", content=b"x" * 10_001, headers=headers, timeout=WAIT_SECONDS)
    assert response.status_code in (401, 413)
    assert response.json()["detail"]


def test_body_without_content_length_is_not_read(site_url: str) -> None:
    pieces = [b"x" * 1000] * 20
    assert httpx.post(f"{site_url}{REGISTER}", content=iter(pieces), timeout=WAIT_SECONDS).status_code == 401


def test_upload_without_token_is_refused_before_its_body(site_url: str) -> None:
    assert httpx.put(site_url + UPLOAD, content=b"x" * 20_000, timeout=WAIT_SECONDS).status_code == 401
    assert httpx.put(site_url + UPLOAD, content=b"x" * 100_001, timeout=WAIT_SECONDS).status_code == 401


def test_static_file_and_its_ranges_are_served(site_url: str) -> None:
    response = httpx.get(f"{site_url}/static/admin/css/base.css", timeout=WAIT_SECONDS)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/css")
    assert len(response.content) > 10_000
    part = httpx.get(f"{site_url}/static/admin/css/base.css", headers={"Range": "bytes=0-9"}, timeout=WAIT_SECONDS)
    assert (part.status_code, part.content) == (206, response.content[:10])
    assert httpx.get(f"{site_url}/static/no/such.css", timeout=WAIT_SECONDS).status_code == 404


def test_response_carries_content_security_policy(site_url: str) -> None:
    response = httpx.get(f"{site_url}/healthz", timeout=WAIT_SECONDS)
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert response.json() == {"status": "ok"}


def test_openapi_of_node_api_lists_all_paths(site_url: str) -> None:
    paths = httpx.get(f"{site_url}/api/node/v1/openapi.json", timeout=WAIT_SECONDS).json()["paths"]
    assert {path.removeprefix("/api/node/v1") for path in paths} == {
        "/register",
        "/poll",
        "/leases/{lease_id}/authorization",
        "/leases/{lease_id}/heartbeat",
        "/leases/{lease_id}/metrics",
        "/leases/{lease_id}/log",
        "/leases/{lease_id}/blobs",
        "/leases/{lease_id}/blobs/{sha256}",
        "/leases/{lease_id}/checkpoints",
        "/leases/{lease_id}/finish",
        "/leases/{lease_id}/packets/take",
        "/leases/{lease_id}/packets/submit",
        "/volunteer",
    }


def test_missing_page_takes_no_query(
    db: None, client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    # Scanners request many such addresses.
    with django_assert_num_queries(0):
        assert client.get("/no/such/page/").status_code == 404
