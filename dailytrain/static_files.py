"""Static files without another server, whole: ours are small."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """WhiteNoise, without streams: a server that waits for answers asynchronously would read them in another thread."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith(self.static_prefix) and (file := self.whole(request)):
            return file
        answer: HttpResponseBase = self.get_response(request)
        return answer

    def whole(self, request: HttpRequest) -> HttpResponse | None:
        """Return the answer with all of the file in it, or None if there is no such file."""
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
