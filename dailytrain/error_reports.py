"""Error reports to Sentry, or to any server that understands its protocol, where SENTRY_DSN is set."""

from __future__ import annotations

import sentry_sdk
from django.conf import settings


def start_error_reports() -> None:
    """Send unhandled exceptions of web, worker and beat. No addresses, cookies or bodies of visitors."""
    if settings.SENTRY_DSN:
        sentry_sdk.init(
            dsn=settings.SENTRY_DSN,
            environment=settings.SENTRY_ENVIRONMENT,
            server_name=settings.SITE_NAME,
            send_default_pii=False,
            max_request_body_size="never",
            include_local_variables=False,
            traces_sample_rate=0.0,
        )
