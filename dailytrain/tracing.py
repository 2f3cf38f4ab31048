"""Traces of requests and tasks by OpenTelemetry, where OTEL_EXPORTER_OTLP_ENDPOINT is set; else nothing is imported.

OpenTelemetry reads its other OTEL_ variables itself: headers, service name, share of the traces that are kept.
"""

from __future__ import annotations

import os
from typing import Any

from celery.signals import worker_process_shutdown
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

NOT_INSTALLED = (
    "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed: pip install --group tracing "
    "(pip 25.1 or newer)."
)
DEFAULTS = {"OTEL_SERVICE_NAME": "dailytrain", "OTEL_PYTHON_DJANGO_EXCLUDED_URLS": "healthz,readyz,metrics"}

VISITOR_ATTRIBUTES = (
    "http.url", "http.target", "http.user_agent", "net.peer.ip",
    "url.full", "url.path", "url.query", "user_agent.original", "client.address", "network.peer.address",
)  # fmt: skip
"""Attributes of OpenTelemetry's old and new HTTP conventions. `http.route` and the span's name identify the page."""


def start_tracing() -> None:
    """Trace requests and tasks of this process and of those that it forks. Spans are exported in batches."""
    if not settings.OTEL_EXPORTER_OTLP_ENDPOINT:
        return
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.celery import CeleryInstrumentor
        from opentelemetry.instrumentation.django import DjangoInstrumentor
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ImproperlyConfigured(NOT_INSTALLED) from error
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    DjangoInstrumentor().instrument(request_hook=clear_visitor)
    CeleryInstrumentor().instrument()

    def flush_spans(**_: Any) -> None:
        provider.force_flush()

    # The processes of a worker's pool end without `atexit`.
    worker_process_shutdown.connect(flush_spans, weak=False, dispatch_uid="tracing")


def clear_visitor(span: Any, request: HttpRequest) -> None:
    """Remove the visitor's address and browser from a request's span, and its URL, which can have a secret."""
    for name in VISITOR_ATTRIBUTES:
        if name in span.attributes:
            span.set_attribute(name, "")
