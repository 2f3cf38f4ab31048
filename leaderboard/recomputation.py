"""Enqueues the recomputation of a track's standings. Imports no models, so that these can call it."""

from __future__ import annotations

import logging

from celery import current_app
from django.core.cache import cache
from django.db import transaction

logger = logging.getLogger(__name__)
TASK = "leaderboard.tasks.recompute_standings"
BROKER_DOWN = "standings:broker-down"
BROKER_RETRY_SECONDS = 30


def request_recomputation(track_id: int) -> None:
    """Enqueue the task once the transaction is committed: after a change of a scored run or of the track's rules."""
    transaction.on_commit(lambda: enqueue_recomputation(track_id))


def enqueue_recomputation(track_id: int) -> None:
    """Enqueue the task. Without a broker the periodic task does the work; a broker that is down is not asked again."""
    if cache.get(BROKER_DOWN):
        return
    try:
        current_app.send_task(TASK, (track_id,), retry=False)
    except Exception as error:
        logger.warning("The standings of track %s wait for the periodic task: %s", track_id, error)
        cache.set(BROKER_DOWN, True, BROKER_RETRY_SECONDS)
