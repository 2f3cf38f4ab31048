"""The start of the web process: it imports all modules, so that the first request is fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.clean_environment import run_python

pytestmark = pytest.mark.processes

SCRIPT = """
import asyncio, json, sys
from dailytrain.asgi import application

async def send_delivery():
    messages, pending = [], [{"type": "http.request", "body": b"{}"}]
    async def receive():
        return pending.pop() if pending else await asyncio.Event().wait()
    async def send(message):
        messages.append(message)
    scope = {
        "type": "http", "method": "POST", "path": "/github/webhook", "raw_path": b"/github/webhook", "root_path": "",
        "query_string": b"", "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1), "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"2")],
    }
    await application(scope, receive, send)
    return messages[0]["status"]

async def run_lifespan():
    messages = []
    waiting = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]
    async def receive():
        return waiting.pop()
    async def send(message):
        messages.append(message["type"])
    await application({"type": "lifespan"}, receive, send)
    return messages

lifespan = asyncio.run(run_lifespan())
before = set(sys.modules)
status = asyncio.run(send_delivery())
imported = {name for name in set(sys.modules) - before if name.startswith(("dailytrain", "leaderboard", "scheduler"))}
print(json.dumps({"lifespan": lifespan, "status": status, "imported": sorted(imported)}))
"""


@pytest.mark.slow
def test_first_request_imports_nothing_and_startup_needs_no_database(tmp_path: Path) -> None:
    done = run_python(tmp_path, "-c", SCRIPT, GITHUB_WEBHOOK_SECRET="secret")
    seen = json.loads(done.stdout.splitlines()[-1])
    assert 400 <= seen["status"] < 500, "the delivery is not signed"
    assert seen["imported"] == []
    assert seen["lifespan"] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
