"""The address and scheme of a visitor, as the trusted proxies report them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

logger = logging.getLogger(__name__)
Application = Callable[[Any, Any, Any], Awaitable[None]]


class TrustedProxiesMiddleware(ProxyHeadersMiddleware):
    """uvicorn's own middleware, with one warning of a process about a proxy that is not named."""

    def __init__(self, application: Application, proxies: Sequence[str]) -> None:
        super().__init__(application, list(proxies))
        self.has_warned = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.warn_of_unnamed_proxy(scope)
        await super().__call__(scope, receive, send)

    def warn_of_unnamed_proxy(self, scope: Any) -> None:
        peer = (scope.get("client") or ("",))[0]
        is_forwarded = any(name == b"x-forwarded-for" for name, _ in scope.get("headers", ()))
        if is_forwarded and not self.has_warned and peer not in self.trusted_hosts:
            self.has_warned = True
            logger.warning(
                "%s sent X-Forwarded-For but is not in TRUSTED_PROXIES: all its visitors share one address and its "
                "rate limits. If it is your proxy, name it there.",
                peer,
            )
