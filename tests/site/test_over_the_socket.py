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


def test_response_carries_content_security_policy(site_url: str) -> None:
    response = httpx.get(f"{site_url}/healthz", timeout=WAIT_SECONDS)
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert response.json() == {"status": "ok"}
