"""What is served at the start is whole: the first request, GitHub's perhaps, imports nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY

FIRST = """
import asyncio, json, sys, time
from dailytrain.asgi import application

async def ask():
    said, unread = [], [{"type": "http.request", "body": b"{}"}]
    async def receive():
        return unread.pop() if unread else await asyncio.Event().wait()
    async def send(message):
        said.append(message)
    scope = {
        "type": "http", "method": "POST", "path": "/github/webhook", "raw_path": b"/github/webhook", "root_path": "",
        "query_string": b"", "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1), "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"2")],
    }
    await application(scope, receive, send)
    return said[0]["status"]

async def open_the_doors():
    said = []
    waiting = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]
    async def receive():
        return waiting.pop()
    async def send(message):
        said.append(message["type"])
    await application({"type": "lifespan"}, receive, send)
    return said

doors = asyncio.run(open_the_doors())
before = set(sys.modules)
began = time.process_time()
status = asyncio.run(ask())
used = time.process_time() - began
ours = {name for name in set(sys.modules) - before if name.startswith(("dailytrain", "leaderboard", "scheduler"))}
print(json.dumps({"doors": doors, "status": status, "imported": sorted(ours), "seconds": used}))
"""


def test_the_doors_open_without_a_database_and_the_first_delivery_finds_all_pages_loaded(tmp_path: Path) -> None:
    environment = {**os.environ, "DAILYTRAIN_HOME": str(tmp_path), "GITHUB_WEBHOOK_SECRET": "secret"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert 400 <= seen["status"] < 500, "it is not signed"
    assert seen["imported"] == []
    assert seen["doors"] == ["lifespan.startup.complete", "lifespan.shutdown.complete"], "though there is no table yet"
