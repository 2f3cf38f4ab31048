"""What a node is refused, each with its HTTP status and a sentence: what happened, what is safe, what to do."""

from __future__ import annotations


class ApiError(ValueError):
    """The request was refused."""

    status = 400

    def __init__(self, sentence: str = "") -> None:
        super().__init__(sentence or self.__class__.__doc__)


class UnauthorizedError(ApiError):
    """This token is not known here, or it has been revoked: ask the site's people for a new join token."""

    status = 401


class ForbiddenError(ApiError):
    """This is not yours."""

    status = 403


class NotFoundError(ApiError):
    """There is no such thing here."""

    status = 404


class LeaseEndedError(ApiError):
    """This lease is over: stop the job and wipe its folder. What was uploaded is safe."""

    status = 409


class OutOfOrderError(ApiError):
    """Something before this is missing."""

    status = 409


class TooLargeError(ApiError):
    """That is larger than the site takes."""

    status = 413


class RangeError(ApiError):
    """That piece does not follow what is here: ask how far the file is here."""

    status = 416


class InvalidMessageError(ApiError):
    """The message cannot be right; nothing was changed."""

    status = 422


class VersionMismatchError(ApiError):
    """This node speaks another version of the protocol: update it (`pip install -U dailytrain`) and start it again."""

    status = 426


class RateLimitError(ApiError):
    """Too many requests: ask again in a minute."""

    status = 429
