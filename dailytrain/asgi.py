"""The ASGI application that uvicorn serves.

Pages and APIs are synchronous Django, so they run as WSGI in a bounded pool of threads: uploads reach their view as
they arrive, files are sent piece by piece, and a request never changes threads. Only polls of nodes are asynchronous,
because thousands of them are held open at a time.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")

from a2wsgi import WSGIMiddleware
from django.conf import settings
from django.core.wsgi import get_wsgi_application

from dailytrain.proxies import TrustedProxiesMiddleware

django_wsgi: Any = get_wsgi_application()

import dailytrain.urls  # noqa: E402, F401 (imports all views before the first request: GitHub waits only 10 s)
from scheduler.node_api.poll_endpoint import POLL_PATH, PollEndpoint, Receive, Scope, Send  # noqa: E402

django_application: Any = WSGIMiddleware(django_wsgi, workers=settings.WEB_THREADS)
poll_endpoint = PollEndpoint()


async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
    is_poll = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == POLL_PATH
    await (poll_endpoint if is_poll else django_application)(scope, receive, send)


application = TrustedProxiesMiddleware(dispatch, settings.TRUSTED_PROXIES)
