"""The site over a real socket: body limits, static files, headers."""

from __future__ import annotations

import httpx
import pytest
from pytest_django import Settings

from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.processes

REGISTER = "/api/node/v1/register"
UPLOAD = "/api/node/v1/leases/1/blobs/" + "0" * 64


@pytest.fixture(autouse=True)
def _small_limits(settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10_000
    settings.BLOB_MAX_BYTES = 100_000


def test_bodies_are_limited_and_not_read_without_a_token(site_url: str) -> None:
    headers = {"Authorization": "Bearer unknown", "Content-Type": "application/json"}
    for path in (REGISTER, "/api/v1/runs"):
        response = httpx.post(f"{site_url}{path}", content=b"x" * 10_001, headers=headers, timeout=WAIT_SECONDS)
        assert response.status_code in (401, 413)
        assert response.json()["detail"]
    pieces = iter([b"x" * 1000] * 20)  # without a Content-Length
    assert httpx.post(f"{site_url}{REGISTER}", content=pieces, timeout=WAIT_SECONDS).status_code == 401
    for size in (20_000, 100_001):
        assert httpx.put(site_url + UPLOAD, content=b"x" * size, timeout=WAIT_SECONDS).status_code == 401
    response = httpx.get(f"{site_url}/healthz", timeout=WAIT_SECONDS)
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert response.json() == {"status": "ok"}
