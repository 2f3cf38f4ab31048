"""Requests the recomputation of a track's standings. Imports no models, so that these can call it."""

from __future__ import annotations

from django.db import transaction

from leaderboard.broker import send_task


def request_recomputation(track_id: int) -> None:
    """Send the task once the transaction is committed: after a change of a scored run or of the track's rules."""
    transaction.on_commit(lambda: send_task("recompute_standings", track_id))
