"""A process that handles the due messages of the outbox. With KILL=1 it is killed after its first effect."""

from __future__ import annotations

import os
import signal
from typing import Any

import django

django.setup()

from leaderboard import outbox  # noqa: E402
from leaderboard.integrations.github import client  # noqa: E402
from leaderboard.models import OutboxMessage  # noqa: E402


def create_check(effect: OutboxMessage) -> dict[str, Any]:
    check = client.get_client("trains/daily").update_check(
        effect.payload["sha"], "train", status="queued", title="Waiting", external_id=effect.key
    )
    if os.environ.get("KILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"check": check}


if __name__ == "__main__":
    outbox.get_handler = lambda kind: create_check
    outbox.process_due()
