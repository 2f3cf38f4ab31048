"""Errors of the node API. The docstring of each class is its default message to the node's owner."""

from __future__ import annotations


class ApiError(ValueError):
    """The request was rejected."""

    status = 400

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.__class__.__doc__)


class UnauthorizedError(ApiError):
    """This token is unknown or revoked. Ask a maintainer for a new join token."""

    status = 401


class ForbiddenError(ApiError):
    """Permission denied."""

    status = 403


class NotFoundError(ApiError):
    """Not found."""

    status = 404


class LeaseEndedError(ApiError):
    """This lease has ended. Stop the job and delete its folder. What was uploaded is safe."""

    status = 409


class OutOfOrderError(ApiError):
    """An earlier part is missing."""

    status = 409


class TooLargeError(ApiError):
    """The request is larger than the site's limit."""

    status = 413


class RangeError(ApiError):
    """This piece does not follow the bytes received so far. Request the upload's offset."""

    status = 416


class InvalidMessageError(ApiError):
    """The message is invalid. Nothing was changed."""

    status = 422


class VersionMismatchError(ApiError):
    """This node uses another protocol version. Update it: regenerate the command on its page and run that."""

    status = 426


class RateLimitError(ApiError):
    """Too many requests. Try again in a minute."""

    status = 429

    def __init__(self, message: str = "", *, limit: str) -> None:
        """`limit`: the rate limit whose window `Retry-After` tells, a key of `rate_limits`."""
        super().__init__(message)
        self.limit = limit
