"""What the wiring does for every request, over a real socket."""

from __future__ import annotations

import httpx
import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

UPLOAD = "/api/node/v1/leases/1/blobs/" + "0" * 64


def unstated(size: int) -> list[bytes]:
    """A body in pieces, whose length no header states."""
    return [b"x" * 1000] * (size // 1000)


@pytest.fixture(autouse=True)
def _small(settings: Settings) -> None:
    settings.BODY_MAX_BYTES = 10_000
    settings.BLOB_MAX_BYTES = 100_000


def test_a_body_that_is_too_large_is_refused_by_its_stated_length(site_url: str) -> None:
    answer = httpx.post(f"{site_url}/api/node/v1/poll", content=b"x" * 10_001)
    assert answer.status_code == 413
    assert answer.json() == {"detail": "That is larger than the site takes at this address."}


def test_a_body_that_hides_its_length_is_cut_off(site_url: str) -> None:
    answer = httpx.post(f"{site_url}/api/node/v1/poll", content=iter(unstated(20_000)))
    assert answer.status_code == 413


def test_files_of_nodes_may_be_larger_than_other_bodies(site_url: str) -> None:
    assert httpx.put(site_url + UPLOAD, content=b"x" * 20_000).status_code == 401
    assert httpx.put(site_url + UPLOAD, content=b"x" * 100_001).status_code == 413
    assert httpx.post(site_url + UPLOAD, content=b"x" * 20_000).status_code == 413


def test_static_files_come_whole(site_url: str) -> None:
    answer = httpx.get(f"{site_url}/static/admin/css/base.css")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/css")
    assert len(answer.content) > 10_000
    part = httpx.get(f"{site_url}/static/admin/css/base.css", headers={"Range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, answer.content[:10])
    assert httpx.get(f"{site_url}/static/no/such.css").status_code == 404


def test_every_answer_carries_the_policy(site_url: str) -> None:
    assert "default-src 'none'" in httpx.get(f"{site_url}/healthz").headers["Content-Security-Policy"]
    assert httpx.get(f"{site_url}/healthz").json() == {"status": "ok"}


def test_what_nodes_can_say_is_documented(site_url: str) -> None:
    paths = httpx.get(f"{site_url}/api/node/v1/openapi.json").json()["paths"]
    assert {path.removeprefix("/api/node/v1") for path in paths} == {
        "/register",
        "/poll",
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


def test_a_page_that_is_not_there_asks_the_database_nothing(
    db: None, client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """They are asked for most by those who guess addresses."""
    with django_assert_num_queries(0):
        assert client.get("/no/such/page/").status_code == 404
