"""What fails on one track: logged, recorded as an Event of the track, and no reason to stop the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from leaderboard.models import Track
from scheduler.models import SITE_ACTOR, Event

logger = logging.getLogger(__name__)


@contextmanager
def isolate_track(track: Track, what: str) -> Iterator[None]:
    """Log an exception instead of raising it. The track's Event says so once, not at each further attempt."""
    try:
        yield
    except Exception as error:
        logger.exception("%s of %s failed", what, track)
        sentence = f"{what}: the site failed ({type(error).__name__}), and tries again. The error is in its log."
        last = Event.objects.about(track).order_by("pk").last()
        if last is None or last.sentence != sentence:
            Event.record(SITE_ACTOR, track, sentence)
