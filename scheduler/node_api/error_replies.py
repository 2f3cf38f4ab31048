"""The one mapping of exceptions to error replies."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import OperationalError
from ninja.errors import AuthenticationError, HttpError, ValidationError

from scheduler import rate_limits
from scheduler.errors import ApiError, RateLimitError, TooLargeError, UnauthorizedError
from trainer.errors import is_disk_full

logger = logging.getLogger(__name__)

RETRY_LATER = {"Retry-After": "60"}
NOT_AUTHENTICATED = "This call needs a token: Authorization: Bearer <token>."


def build_error_reply(error: Exception) -> tuple[int, str, dict[str, str]]:
    """Return the HTTP status, the message and further headers."""
    if isinstance(error, HttpError) and isinstance(error.__cause__, Exception):  # raised by the body's parser
        error = error.__cause__
    if isinstance(error, ApiError):
        limit = error.limit if isinstance(error, RateLimitError) else ""
        headers = {"Retry-After": str(rate_limits.get_retry_after(limit))} if limit else {}
        return error.status, str(error), headers
    if isinstance(error, RequestDataTooBig):
        return TooLargeError.status, "The message is too large. Send less at a time.", {}
    if isinstance(error, AuthenticationError):
        return UnauthorizedError.status, NOT_AUTHENTICATED, {}
    if isinstance(error, ValidationError):
        return 422, describe_validation_error(error.errors), {}
    if is_disk_full(error):
        logger.error("A node's call failed: the disk is full", exc_info=error)
        return 507, "The site's disk is full. Nothing of this call was kept. Try again later.", RETRY_LATER
    if isinstance(error, OperationalError):
        logger.error("A node's call failed: the database does not answer", exc_info=error)
        return 503, "The site's database does not answer. Try again later.", RETRY_LATER
    logger.error("A node's call failed", exc_info=error)
    return 500, "The site failed to answer this call. Try again later.", {}


def describe_validation_error(errors: Sequence[Any]) -> str:
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "path", "message"))
    if first["type"] == "extra_forbidden":
        return f"Unknown field {where}. Is the agent newer than the site?"
    return f"Invalid message at {where or 'its root'}: {first['msg']}."
