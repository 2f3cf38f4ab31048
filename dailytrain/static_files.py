"""Static files without another server, and without a thread for every request that is not for one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """WhiteNoise, for a server that waits for answers asynchronously.

    The original blocks a thread until the view has answered, and a node's question is held open for a minute.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if iscoroutinefunction(self):
            return self.later(request)
        answer: HttpResponseBase = super().__call__(request)
        return answer

    async def later(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith(self.static_prefix) and (answer := await sync_to_async(self.whole)(request)):
            return answer
        response: HttpResponseBase = await self.get_response(request)
        return response

    def whole(self, request: HttpRequest) -> HttpResponse | None:
        """Return the answer with all of the file in it (ours are small), or None if there is no such file."""
        path = request.path_info
        file = self.find_file(path) if self.autorefresh else self.files.get(path)
        if file is None:
            return None
        streamed = self.serve(file, request)
        try:
            content = b"".join(streamed.streaming_content)
            return HttpResponse(content, status=streamed.status_code, headers=dict(streamed.items()))
        finally:
            streamed.close()
