"""Prepare a season and begin it: a message of the outbox, which takes hours.

`create_season` works on it in the terminal, the button in the admin leaves it to a worker of the queue `long`. Each
stage continues where it was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from leaderboard import outbox
from leaderboard.models import OutboxMessage, Season
from leaderboard.schedule import evaluation_data, first_season, next_season
from leaderboard.schedule.first_season import SetupError
from leaderboard.schedule.preparation_progress import ClaimLostError, PreparationProgress
from scheduler.models import Event
from trainer.errors import UserError
from trainer.scoring.benchmark_tasks import NAMES, check_names

KIND = "season.prepare"
UNFINISHED = (OutboxMessage.State.PENDING, OutboxMessage.State.CLAIMED)
WAIT = timedelta(minutes=1)


def parse_suite(text: str) -> list[str]:
    """Return the benchmark tasks of a list with commas. Raises UserError if one is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    check_names(names)
    return names


def find_preparation(season: Season) -> OutboxMessage | None:
    return OutboxMessage.objects.filter(key=f"{KIND}:{season.pk}").first()


def filter_working() -> QuerySet[OutboxMessage]:
    """Return the preparations that a living process works on."""
    return OutboxMessage.objects.filter(kind=KIND, state=OutboxMessage.State.CLAIMED, claimed_until__gte=timezone.now())


@transaction.atomic
def request_preparation(
    season: Season, actor: str, suite: Sequence[str] = tuple(NAMES), folder: Path | None = None
) -> OutboxMessage:
    """Return the season's preparation, which waits for a process. One that has not ended stays as it is.

    Raises ValidationError if the season's fields are wrong, and SetupError if it is over or `folder` does not exist.
    """
    next_season.check_not_over(season)
    season.full_clean()
    if folder is not None and not folder.is_dir():
        raise SetupError(f"There is no folder {folder} on the server: name one with evaluation data, or none.")
    message = find_preparation(season)
    if message is not None and message.state in UNFINISHED:
        return message
    payload = {"season": season.pk, "suite": list(suite), "folder": str(folder.absolute()) if folder else ""}
    message = outbox.enqueue(KIND, f"{KIND}:{season.pk}", {**payload, "actor": actor})
    OutboxMessage.objects.filter(pk=message.pk).update(result={})
    message.refresh_from_db()
    Event.record(actor, season, f"Preparation of {season} requested.")
    return message


@transaction.atomic
def cancel_preparation(season: Season, actor: str) -> bool:
    """Stop a preparation; return whether it had not ended. What is done is kept for the next request."""
    active = OutboxMessage.objects.filter(key=f"{KIND}:{season.pk}", state__in=UNFINISHED)
    text = f"Cancelled by {actor}. What is done is kept, and a new request continues there."
    ended = {"state": OutboxMessage.State.DONE, "claimed_until": None, "done_at": timezone.now(), "problem": ""}
    if not active.update(**ended, result={"message": text}):
        return False
    Event.record(actor, season, f"Preparation of {season} cancelled.")
    return True


def prepare_season(message: OutboxMessage) -> Mapping[str, Any]:
    """Handler of `KIND`: prepare a season and begin it. One at a time, since it uses all cores of its machine."""
    if filter_working().exclude(pk=message.pk).exists():
        raise outbox.RetryLater("Another season is being prepared.", WAIT)
    season, actor = Season.objects.get(pk=message.payload["season"]), message.payload["actor"]
    try:
        text = prepare_and_begin(season, message.payload, PreparationProgress(message))
    except ClaimLostError:
        return {}  # the row is no longer of this process
    except (SetupError, UserError, ValidationError, OSError) as error:
        reason = "\n".join(error.messages) if isinstance(error, ValidationError) else str(error)
        Event.record(actor, season, f"Preparation of {season} failed: {reason}"[:500])
        raise outbox.PermanentError(f"{reason.rstrip('.')}. What is done is kept.") from error
    Event.record(actor, season, f"Preparation of {season} done: {text}"[:500])
    return {"message": text}


def prepare_and_begin(season: Season, payload: Mapping[str, Any], progress: PreparationProgress) -> str:
    """Return what the season took over, and a line for each track that does not fit into it."""
    folder = Path(payload["folder"]) if payload["folder"] else None
    # First, since the dataset may take hours: a season begins with all evaluation data or not at all.
    progress.begin_stage("Storing the evaluation data")
    if lacking := evaluation_data.store_evaluation_data(season, payload["suite"], folder, progress):
        raise SetupError(
            f"No evaluation data of {', '.join(lacking)}, so {season} does not begin. Request it again with a "
            "network, with a folder that has the data (--eval-data FOLDER), or with the tasks that you need (--suite)."
        )
    first_season.prepare_season(season, show_progress=sys.stderr.isatty(), progress=progress)
    progress.begin_stage("Beginning the season")
    tracks = next_season.begin_season(season)
    queued = next_season.start_ladders(tracks)
    left = [f"{track.slug} stays in {track.season}: {reason}" for track, reason in next_season.list_left_tracks(season)]
    taken = f"{len(tracks)} tracks continue in it; {queued} runs of its baseline's ladder are requested"
    return "\n".join([taken, *left])
