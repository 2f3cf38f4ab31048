"""Logs as text or as JSON. Each line of JSON names the request, and the job and lease or the task that it is about."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

import structlog
from celery.signals import task_postrun, task_prerun
from django.http import HttpRequest
from django.http.response import HttpResponseBase

access = logging.getLogger("dailytrain.access")

ACCESS_FIELDS = ("method", "path", "status", "milliseconds", "address")

JSON_FORMATTER: dict[str, Any] = {
    "()": structlog.stdlib.ProcessorFormatter,
    "foreign_pre_chain": [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=ACCESS_FIELDS),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ],
    "processors": [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(),
    ],
}
LINE_FORMATTER = {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}
SECRET_ADDRESSES = ("apprise", "httpcore", "httpx", "urllib3")
"""Loggers that print the secret webhook addresses of subscribers at lower levels."""

SECRET_PARAMETERS = {"token", "key"}
"""Secret parameters of addresses: pages of prompts, links of e-mails."""


def build_logging(log_format: str, level: str) -> dict[str, Any]:
    """Return the setting LOGGING. With JSON, `dailytrain.access` replaces the access log of uvicorn."""
    is_json = log_format == "json"
    handed_on = {"handlers": [], "propagate": True}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": JSON_FORMATTER if is_json else LINE_FORMATTER},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["console"], "level": level},
        "loggers": {
            **{name: {"level": "WARNING"} for name in SECRET_ADDRESSES},
            "dailytrain.access": {"level": "INFO" if is_json else "WARNING"},
            **({"uvicorn": handed_on, "uvicorn.access": {**handed_on, "level": "WARNING"}} if is_json else {}),
        },
    }


class RequestLogMiddleware:
    """Give each request an id, which its lines of the log and its response (`X-Request-ID`) carry."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        started, number = time.monotonic(), uuid.uuid4().hex
        structlog.contextvars.clear_contextvars()  # threads are reused
        structlog.contextvars.bind_contextvars(request_id=number)
        try:
            response = self.get_response(request)
            # Without the query, or the route where the path has a secret: links of e-mails have secrets in both.
            match = request.resolver_match
            path = f"/{match.route}" if match and SECRET_PARAMETERS & match.kwargs.keys() else request.path
            fields = {
                "method": request.method,
                "path": path,
                "status": response.status_code,
                "milliseconds": round(1000 * (time.monotonic() - started), 1),
                "address": request.META.get("REMOTE_ADDR", ""),
            }
            access.info("%s %s %d", request.method, path, response.status_code, extra=fields)
            response.headers["X-Request-ID"] = number
            return response
        finally:
            structlog.contextvars.clear_contextvars()


def bind_task(task_id: str, task: Any, **options: Any) -> None:
    structlog.contextvars.bind_contextvars(task=task.name, task_id=task_id)


def clear_task(**options: Any) -> None:
    structlog.contextvars.clear_contextvars()


def connect_task_signals() -> None:
    task_prerun.connect(bind_task, weak=False, dispatch_uid="logs")
    task_postrun.connect(clear_task, weak=False, dispatch_uid="logs")
