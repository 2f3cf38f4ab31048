"""The site behind its reverse proxy, as compose.yaml configures both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import uvicorn
import yaml

from tests.support.paths import REPOSITORY

PROXY_ADDRESS = "172.20.0.5"  # of the proxy's container in the network of compose


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
    return found


def get_client_address(services: dict[str, Any], forwarded_for: str) -> str:
    """Return the client address that the application sees for a request of the proxy."""
    seen: list[str] = []

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    trusted = services["web"]["environment"].get("FORWARDED_ALLOW_IPS")
    config = uvicorn.Config(application, forwarded_allow_ips=trusted, proxy_headers=True)
    config.load()
    scope: Mapping[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "server": ("web", 8000),
        "client": (PROXY_ADDRESS, 40_000),
        "headers": [(b"x-forwarded-for", forwarded_for.encode())],
    }
    asyncio.run(config.loaded_app(scope, None, None))  # type: ignore[arg-type]
    return seen[0]


def test_client_address_behind_proxy_is_that_of_the_visitor(services: dict[str, Any]) -> None:
    # Rate limits count by it: with the proxy's address all visitors share one.
    assert get_client_address(services, "203.0.113.7") == "203.0.113.7"


def test_web_service_is_reachable_through_the_proxy_only(services: dict[str, Any]) -> None:
    # The web service trusts X-Forwarded-For of every client, so no other client may reach it.
    assert "ports" not in services["web"]
    assert services["proxy"]["ports"] == ["127.0.0.1:8000:8000"]
    config = (REPOSITORY / "docker" / "nginx.conf.template").read_text()
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in config, "replaced, not extended"
