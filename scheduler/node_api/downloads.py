"""File downloads of nodes, whole or resumed with `Range`."""

from __future__ import annotations

import re

from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase

from scheduler import storage
from scheduler.errors import RangeError
from scheduler.models import Blob

PARTIAL = 206


class BlobResponse(FileResponse):
    block_size = storage.CHUNK  # each block passes from a thread to the event loop


def send_blob(request: HttpRequest, blob: Blob) -> HttpResponseBase:
    """Return the file, or its bytes from the start of `Range` on. Raises RangeError."""
    tag = f'"{blob.sha256}"'
    same = request.headers.get("If-Range", tag) == tag  # otherwise the node has part of another file
    # Other ranges are ignored, as HTTP allows (RFC 9110, 14.2).
    found = re.fullmatch(r"bytes=(\d{1,15})-", request.headers.get("Range", "").strip()) if same else None
    first = int(found[1]) if found else 0
    if first and first >= blob.size:
        raise RangeError(f"The file has {blob.size:,} bytes and no byte {first:,}. Request the whole file.")
    file = storage.open_blob(blob)
    file.seek(first)
    headers = {"Content-Length": str(blob.size - first), "Accept-Ranges": "bytes", "ETag": tag}
    if first:
        headers["Content-Range"] = f"bytes {first}-{blob.size - 1}/{blob.size}"
    response = BlobResponse(file, content_type="application/octet-stream", headers=headers)
    response.status_code = PARTIAL if first else 200
    return response
