"""What nodes say to the site, under `/api/node/v1/`: the messages of `trainer/protocol`, both ways.

The body of every error is a `protocol.ErrorDetail`. 401 and 403: the token does not allow this; 409: the lease has
ended; 426: another version of the protocol; 429: too many requests.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.parser import Parser
from ninja.security import HttpBearer

from scheduler import leases, rate_limits, sanitize, signing, storage
from scheduler.errors import ApiError, InvalidMessageError, TooLargeError, UnauthorizedError, VersionMismatchError
from scheduler.models import Lease, Node
from scheduler.node_api import auth, downloads, job_reports, polls, resumable_uploads, uploads
from trainer import protocol

REFUSALS = dict.fromkeys((400, 401, 403, 404, 409, 413, 416, 422, 426, 429), protocol.ErrorDetail)


class PlainJson(Parser):
    """Reads JSON into what can be stored. Another protocol version is told so before anything else seems wrong."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        return plain_json(request.body)


def plain_json(body: bytes) -> dict[str, Any]:
    """Return a message; raise ValueError or Refused where it is none."""
    data = sanitize.sanitize_message(json.loads(body))
    if not isinstance(data, dict):
        raise InvalidMessageError("The message has to be a JSON object.")
    if data.get("version", protocol.VERSION) != protocol.VERSION:
        raise VersionMismatchError
    return data


class JoinToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> str:
        rate_limits.check_rate_limit("register", request.META.get("REMOTE_ADDR", ""))
        return token


class NodeToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Node:
        return admitted(token)


def admitted(token: str) -> Node:
    """Return the node, if it does not ask too often. The cache that counts may be far away."""
    node = auth.get_node_by_token(token)
    rate_limits.check_rate_limit("poll", str(node.pk))
    return node


def holder(token: str, lease_id: int) -> Lease:
    """Return the lease, if whoever has it does not speak too often."""
    lease = auth.get_lease_by_token(token, lease_id)
    rate_limits.check_rate_limit("lease", str(lease.pk))
    return lease


class LeaseToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Lease:
        assert request.resolver_match is not None
        return holder(token, int(request.resolver_match.kwargs["lease_id"]))


node_api = NinjaAPI(
    title="The Daily Train: nodes",
    version=str(protocol.VERSION),
    urls_namespace="node_api",
    description=__doc__,
    parser=PlainJson(),
    docs_url=None,
)


class Asked(HttpRequest):
    """A request of which ninja has found out who sent it."""

    auth: Any


# --- node <-> site ---------------------------------------------------------------------------------------------------


@node_api.post("/register", auth=JoinToken(), response={200: protocol.RegisterReply, **REFUSALS})
def register(request: Asked, message: protocol.Register) -> protocol.RegisterReply:
    """A new node joins, with its join token; it gets its own token and the key to check job specs with."""
    node, token = auth.register_node(request.auth, message)
    return protocol.RegisterReply(node=node.pk, token=token, public_key=signing.get_public_key())


@node_api.post("/poll", auth=NodeToken(), response={200: protocol.PollReply, **REFUSALS})
def poll(request: Asked, message: protocol.Poll) -> HttpResponse:
    """A free node asks what to do. The question stays open for a while if there is nothing: that, and whatever is in
    order, is the front desk's (`scheduler/node_api/poll_endpoint.py`); what comes here is answered at once."""
    question = polls.Question(request.auth, message)
    action = question.first() or question.nothing(waited=False)
    return written(action)


# --- lease -> site ---------------------------------------------------------------------------------------------------


@node_api.post(
    "/leases/{int:lease_id}/heartbeat", auth=LeaseToken(), response={200: protocol.HeartbeatReply, **REFUSALS}
)
def heartbeat(request: Asked, lease_id: int, message: protocol.Heartbeat) -> protocol.HeartbeatReply:
    """Keeps the lease; the reply may ask to stop."""
    return leases.renew_lease(request.auth, message)


@node_api.post("/leases/{int:lease_id}/metrics", auth=LeaseToken(), response={200: protocol.Acknowledgment, **REFUSALS})
def metrics(request: Asked, lease_id: int, message: protocol.MetricsBatch) -> protocol.Acknowledgment:
    """The next batch of metric lines; a repeat does nothing."""
    return job_reports.store_metrics(request.auth, message)


@node_api.post("/leases/{int:lease_id}/log", auth=LeaseToken(), response={200: protocol.Acknowledgment, **REFUSALS})
def log(request: Asked, lease_id: int, message: protocol.LogChunk) -> protocol.Acknowledgment:
    """The next stretch of output; a repeat does nothing."""
    return job_reports.store_log(request.auth, message)


@node_api.post("/leases/{int:lease_id}/blobs", auth=LeaseToken(), response={200: protocol.MissingBlobs, **REFUSALS})
def blobs(request: Asked, lease_id: int, message: protocol.BlobQuery) -> protocol.MissingBlobs:
    """Which of these files does the site still want?"""
    return uploads.list_missing_blobs(request.auth, message)


@node_api.put(
    "/leases/{int:lease_id}/blobs/{sha256}",
    auth=LeaseToken(),
    response={200: protocol.Acknowledgment, **REFUSALS},
    openapi_extra={
        "requestBody": {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    },
)
def put_blob(request: Asked, lease_id: int, sha256: protocol.Sha256) -> protocol.Acknowledgment:
    """One file, as raw bytes, or a piece of it (`Content-Range`). It counts when all of it is here with this hash."""
    length = int(request.META.get("CONTENT_LENGTH") or 0)
    if header := request.headers.get("Content-Range"):
        span = resumable_uploads.ByteRange.parse(header, length)
        return protocol.Acknowledgment(received=uploads.store_upload_piece(request.auth, sha256, request.read, span))
    return protocol.Acknowledgment(received=uploads.store_upload(request.auth, sha256, request.read, length).size)


@node_api.api_operation(
    ["HEAD"], "/leases/{int:lease_id}/blobs/{sha256}", auth=LeaseToken(), response=REFUSALS, operation_id="how_far"
)
def how_far(request: Asked, lease_id: int, sha256: protocol.Sha256) -> HttpResponse:
    """How many bytes of a file have come under this lease: `Upload-Offset`."""
    return HttpResponse(headers={"Upload-Offset": str(uploads.get_upload_offset(request.auth, sha256))})


@node_api.get("/leases/{int:lease_id}/blobs/{sha256}", auth=LeaseToken(), response=REFUSALS)
def get_blob(request: Asked, lease_id: int, sha256: protocol.Sha256) -> HttpResponseBase:
    """A file that the lease's spec names: raw bytes, those from `Range: bytes=<first>-` on, or a redirect to them."""
    blob = uploads.get_downloadable_blob(request.auth, sha256)
    if address := storage.get_presigned_url(blob):
        return HttpResponseRedirect(address)
    return downloads.send_blob(request, blob)


@node_api.post(
    "/leases/{int:lease_id}/checkpoints", auth=LeaseToken(), response={200: protocol.Acknowledgment, **REFUSALS}
)
def checkpoints(request: Asked, lease_id: int, message: protocol.CheckpointUploaded) -> protocol.Acknowledgment:
    """Every file of the checkpoint has been sent: it counts from now on."""
    uploads.record_checkpoint(request.auth, message.checkpoint, message.files)
    return protocol.Acknowledgment(received=message.checkpoint.step)


@node_api.post("/leases/{int:lease_id}/finish", auth=LeaseToken(), response={200: protocol.Acknowledgment, **REFUSALS})
def finish(request: Asked, lease_id: int, message: protocol.FinishLease) -> protocol.Acknowledgment:
    """The end of the lease; a repeat does nothing."""
    lease: Lease = request.auth
    leases.finish_lease(lease, message)
    return protocol.Acknowledgment(received=lease.metrics_received)


def written(message: protocol.Message) -> HttpResponse:
    """Return a message as it is: ninja would check once more what we have just made."""
    return HttpResponse(message.model_dump_json(exclude_none=True), content_type="application/json")


# --- answers that are not messages -----------------------------------------------------------------------------------


def refuse(request: HttpRequest, status: int, sentence: str) -> HttpResponse:
    return node_api.create_response(request, protocol.ErrorDetail(detail=sentence).model_dump(), status=status)


@node_api.exception_handler(ApiError)
def refused(request: HttpRequest, error: ApiError) -> HttpResponse:
    response = refuse(request, error.status, str(error))
    if error.status == 429:
        response["Retry-After"] = str(rate_limits.get_retry_after())
    return response


@node_api.exception_handler(HttpError)
def unread(request: HttpRequest, error: HttpError) -> HttpResponse:
    """ninja says this of whatever the parser raises; the parser's own word is better."""
    if isinstance(error.__cause__, ApiError):
        return refused(request, error.__cause__)
    return refuse(request, error.status_code, "The message is not JSON.")


@node_api.exception_handler(RequestDataTooBig)
def too_large(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return refuse(request, TooLargeError.status, "The message is larger than the site takes: send less at a time.")


@node_api.exception_handler(AuthenticationError)
def no_token(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return refuse(request, UnauthorizedError.status, "This call needs a token: Authorization: Bearer <token>.")


@node_api.exception_handler(ValidationError)
def unacceptable(request: HttpRequest, error: ValidationError) -> HttpResponse:
    first = error.errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "path", "message"))
    if first["type"] == "extra_forbidden":
        return refuse(request, 422, f"The message says {where}, which this site does not know: is the agent newer?")
    return refuse(request, 422, f"The message cannot be right at {where or 'its root'}: {first['msg']}.")
