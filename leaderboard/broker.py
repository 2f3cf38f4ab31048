"""Sends Celery tasks. Imports no models, so that these can call it."""

from __future__ import annotations

import logging

from celery import current_app
from django.conf import settings
from django.core.cache import cache

logger = logging.getLogger(__name__)
BROKER_DOWN = "broker-down"
RETRY_SECONDS = 30


def send_task(name: str, pk: int) -> None:
    """Send the task of a row. Without a broker the schedule does its work later.

    After an error the broker is not tried for a while, so that requests do not wait for it. The embedded one runs with
    `manage.py run` only, so a command before it is no reason for a warning.
    """
    is_stopped = settings.REDIS_URL == settings.EMBEDDED_REDIS_URL and not settings.EMBEDDED_REDIS.exists()
    if is_stopped or cache.get(BROKER_DOWN):
        return
    try:
        current_app.send_task(f"leaderboard.tasks.{name}", (pk,), retry=False)
    except Exception as error:
        logger.warning("%s(%s) waits for the schedule: %s", name, pk, error)
        cache.set(BROKER_DOWN, True, RETRY_SECONDS)
