"""Serves an application over a real socket, in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.support.waits import WAIT_SECONDS


@contextmanager
def serve_in_thread(application: Any) -> Iterator[str]:
    """Serve an ASGI application with uvicorn; yield its address."""
    options: dict[str, Any] = {"lifespan": "off", "log_level": "warning", "ws": "none", "proxy_headers": False}
    config = uvicorn.Config(application, host="127.0.0.1", port=0, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + WAIT_SECONDS
    while not server.started:
        assert thread.is_alive(), "the site did not start"
        assert time.monotonic() < deadline, "the site is not ready"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
