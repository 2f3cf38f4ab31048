"""Celery tasks of the project."""

from __future__ import annotations

from celery import shared_task
from django.core.management import call_command


@shared_task  # type: ignore[untyped-decorator]
def delete_expired_sessions() -> None:
    call_command("clearsessions")
