"""The node API under `/api/node/v1/`, with the messages of `trainer/protocol`.

The body of every error is a `protocol.ErrorDetail`. 401 and 403: the token does not allow this; 409: the lease has
ended; 426: another version of the protocol; 429: too many requests; 503 and 507: the database does not answer, or the
disk is full, so try again later.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from ninja import NinjaAPI, Status
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.parser import Parser
from ninja.security import HttpBearer
from structlog.contextvars import bind_contextvars

from scheduler import leases, node_tokens, rate_limits, resumable_uploads, sanitize, signing, storage, uploads
from scheduler.errors import ApiError
from scheduler.models import Lease, Node
from scheduler.node_api import downloads, job_reports, polls
from scheduler.node_api.error_replies import build_error_reply
from trainer import protocol

ERRORS = dict.fromkeys((400, 401, 403, 404, 409, 413, 416, 422, 426, 429, 503, 507), protocol.ErrorDetail)
FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
FILE_RESPONSES: dict[int, Any] = {
    200: {"description": "The file.", "content": FILE},
    206: {"description": "The file from `Range` on.", "content": FILE},
    302: {"description": "The file's address in the bucket."},
}


class MessageParser(Parser):
    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        return sanitize.parse_message(request.body)


class JoinToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> str:
        rate_limits.check_rate_limit("register", request.META.get("REMOTE_ADDR", ""))
        return token


class NodeToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Node:
        return node_tokens.authenticate_node(token)


class LeaseToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Lease:
        assert request.resolver_match is not None
        lease = node_tokens.authenticate_lease(token, int(request.resolver_match.kwargs["lease_id"]))
        bind_contextvars(lease=lease.pk, job=lease.job_id, node=lease.node_id)  # in each line of the log
        return lease


node_api = NinjaAPI(
    title="The Daily Train: nodes",
    version=str(protocol.VERSION),
    urls_namespace="node_api",
    description=__doc__,
    parser=MessageParser(),
    docs_url=None,
)


class NodeRequest(HttpRequest):
    """A request with the result of ninja's authentication."""

    auth: Any


# --- node <-> site ---------------------------------------------------------------------------------------------------


@node_api.post("/register", auth=JoinToken(), response={200: protocol.RegisterReply, **ERRORS})
def register(request: NodeRequest, message: protocol.Register) -> protocol.RegisterReply:
    """Register a node by its join token. The reply has its own token and the key that signs job specs."""
    node, token = node_tokens.register_node(request.auth, message)
    return protocol.RegisterReply(node=node.pk, token=token, public_key=signing.get_public_key())


@node_api.post("/poll", auth=NodeToken(), response={200: protocol.PollReply, **ERRORS}, exclude_none=True)
def poll(request: NodeRequest, message: protocol.Poll) -> protocol.PollReply:
    """A free node requests a job. The reply has one, or says when to poll again."""
    rate_limits.check_rate_limit("poll", f"{request.auth.pk}:{message.lane}")
    return polls.answer_poll(request.auth, message)


# --- lease -> site ---------------------------------------------------------------------------------------------------


@node_api.post("/leases/{int:lease_id}/heartbeat", auth=LeaseToken(), response={200: protocol.HeartbeatReply, **ERRORS})
def heartbeat(request: NodeRequest, lease_id: int, message: protocol.Heartbeat) -> protocol.HeartbeatReply:
    """Renew the lease. The reply may request a stop."""
    return leases.renew_lease(request.auth, message)


@node_api.post("/leases/{int:lease_id}/metrics", auth=LeaseToken(), response={200: protocol.Acknowledgment, **ERRORS})
def metrics(request: NodeRequest, lease_id: int, message: protocol.MetricsBatch) -> protocol.Acknowledgment:
    """Store the next batch of metric rows. A repeat changes nothing."""
    return job_reports.store_metrics(request.auth, message)


@node_api.post("/leases/{int:lease_id}/log", auth=LeaseToken(), response={200: protocol.Acknowledgment, **ERRORS})
def log(request: NodeRequest, lease_id: int, message: protocol.LogChunk) -> protocol.Acknowledgment:
    """Store the next part of the output. A repeat changes nothing."""
    return job_reports.store_log(request.auth, message)


@node_api.get("/leases/{int:lease_id}/authorization", auth=LeaseToken(), response={204: None, **ERRORS})
def authorize_upload(request: NodeRequest, lease_id: int, response: HttpResponse) -> Status[None]:
    """Return 204 for the lease's token. A proxy asks this before it reads a file (docker/nginx.conf.template).

    `X-Owner` says whose uploads it counts together: those of a person, of a node without one, or of all ended leases.
    """
    lease = request.auth
    owner = f"user {lease.node.owner_id}" if lease.node.owner_id else f"node {lease.node_id}"
    response["X-Owner"] = owner if lease.state == Lease.State.ACTIVE else "ended"
    return Status(204, None)


@node_api.post("/leases/{int:lease_id}/blobs", auth=LeaseToken(), response={200: protocol.MissingBlobs, **ERRORS})
def blobs(request: NodeRequest, lease_id: int, message: protocol.BlobQuery) -> protocol.MissingBlobs:
    """Return which of these files are missing."""
    return uploads.list_missing_blobs(request.auth, message)


@node_api.put(
    "/leases/{int:lease_id}/blobs/{sha256}",
    auth=LeaseToken(),
    response={200: protocol.Acknowledgment, **ERRORS},
    openapi_extra={"requestBody": {"content": FILE, "required": True}},
)
def put_blob(request: NodeRequest, lease_id: int, sha256: protocol.Sha256) -> protocol.Acknowledgment:
    """Upload a file as raw bytes, or a piece of it (`Content-Range`). A complete file must have this hash."""
    length = int(request.META.get("CONTENT_LENGTH") or 0)
    span = resumable_uploads.ByteRange(0, length - 1, length)
    if header := request.headers.get("Content-Range"):
        span = resumable_uploads.ByteRange.parse(header, length)
    return protocol.Acknowledgment(received=uploads.store_upload(request.auth, sha256, request.read, span))


@node_api.api_operation(
    ["HEAD"],
    "/leases/{int:lease_id}/blobs/{sha256}",
    auth=LeaseToken(),
    response={200: None, **ERRORS},
    operation_id="get_upload_offset",
)
def get_upload_offset(request: NodeRequest, lease_id: int, sha256: protocol.Sha256) -> HttpResponse:
    """Return in `Upload-Offset` how many bytes of a file have arrived under this lease."""
    return HttpResponse(headers={"Upload-Offset": str(uploads.get_upload_offset(request.auth, sha256))})


@node_api.get(
    "/leases/{int:lease_id}/blobs/{sha256}",
    auth=LeaseToken(),
    response=ERRORS,
    openapi_extra={"responses": FILE_RESPONSES},
)
def get_blob(request: NodeRequest, lease_id: int, sha256: protocol.Sha256) -> HttpResponseBase:
    """Return a file that the lease's spec names: raw bytes, from `Range: bytes=<first>-` on, or a redirect."""
    blob = uploads.get_downloadable_blob(request.auth, sha256)
    if url := storage.get_presigned_url(blob):
        return HttpResponseRedirect(url)
    return downloads.send_blob(request, blob)


@node_api.post(
    "/leases/{int:lease_id}/checkpoints", auth=LeaseToken(), response={200: protocol.Acknowledgment, **ERRORS}
)
def checkpoints(request: NodeRequest, lease_id: int, message: protocol.CheckpointUploaded) -> protocol.Acknowledgment:
    """Record a checkpoint whose files have all been uploaded."""
    uploads.record_checkpoint(request.auth, message.checkpoint, message.files)
    return protocol.Acknowledgment(received=message.checkpoint.step)


@node_api.post("/leases/{int:lease_id}/finish", auth=LeaseToken(), response={200: protocol.Acknowledgment, **ERRORS})
def finish(request: NodeRequest, lease_id: int, message: protocol.FinishLease) -> protocol.Acknowledgment:
    """End the lease with its outcome. A repeat changes nothing."""
    lease: Lease = request.auth
    leases.finish_lease(lease, message)
    return protocol.Acknowledgment(received=lease.metrics_received)


# --- errors -----------------------------------------------------------------------------------------------------------


def handle_error(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
    assert isinstance(error, Exception)
    status, detail, headers = build_error_reply(error)
    response = node_api.create_response(request, protocol.ErrorDetail(detail=detail).model_dump(), status=status)
    for name, value in headers.items():
        response[name] = value
    return response


for error_class in (
    *(ApiError, HttpError, RequestDataTooBig, AuthenticationError, ValidationError),
    *(OSError, OperationalError),
):
    node_api.add_exception_handler(error_class, handle_error)
