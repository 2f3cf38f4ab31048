"""Files on their way to a node: all of one, or what is missing of it after a break."""

from __future__ import annotations

import re

from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase

from scheduler import storage
from scheduler.errors import RangeError
from scheduler.models import Blob

PARTIAL = 206


def send_blob(request: HttpRequest, blob: Blob) -> HttpResponseBase:
    """Return the file, or its bytes from where `Range` says on; raise RangeError if there are none."""
    tag = f'"{blob.sha256}"'
    same = request.headers.get("If-Range", tag) == tag  # otherwise what was begun is of another file
    first = parse_range_start(request.headers.get("Range", "")) if same else 0
    if first and first >= blob.size:
        raise RangeError(f"The file has {blob.size:,} bytes: there is none from byte {first:,} on. Ask for all of it.")
    file = storage.open_blob(blob)
    file.seek(first)
    headers = {"Content-Length": str(blob.size - first), "Accept-Ranges": "bytes", "ETag": tag}
    if first:
        headers["Content-Range"] = f"bytes {first}-{blob.size - 1}/{blob.size}"
    answer = FileResponse(file, content_type="application/octet-stream", headers=headers)
    answer.status_code = PARTIAL if first else 200
    return answer


def parse_range_start(header: str) -> int:
    """Return where a range begins that goes on to the end. For others all is sent, as HTTP allows (RFC 9110, 14.2)."""
    match = re.fullmatch(r"bytes=(\d{1,15})-", header.strip())
    return int(match[1]) if match else 0
