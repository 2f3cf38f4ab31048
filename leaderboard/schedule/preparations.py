"""Prepare a season and begin it, as a job: a row (`SeasonPreparation`), claimed by one process at a time.

`create_season` works on it in the terminal, the button in the admin sends the Celery task. The schedule continues what
was requested while the broker was down, or whose process died. Each stage continues where it was interrupted.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists
from django.utils import timezone

from leaderboard.models import Season, SeasonPreparation
from leaderboard.schedule import evaluation_data, first_season, next_season
from leaderboard.schedule.first_season import SetupError
from leaderboard.schedule.preparation_progress import CLAIM_TIME, ClaimLostError, PreparationProgress, RowProgress
from scheduler.models import Event
from trainer.errors import UserError
from trainer.scoring.benchmark_tasks import NAMES, check_names

logger = logging.getLogger(__name__)
State = SeasonPreparation.State


def parse_suite(text: str) -> list[str]:
    """Return the benchmark tasks of a list with commas. Raises UserError if one is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    check_names(names)
    return names


def request_preparation(
    season: Season, actor: str, suite: Sequence[str] = tuple(NAMES), folder: Path | None = None
) -> SeasonPreparation:
    """Return the season's preparation, which waits for a process. One that has not ended stays as it is.

    Raises ValidationError if the season's fields are wrong, and SetupError if it is over or `folder` does not exist.
    """
    next_season.check_not_over(season)
    season.full_clean()
    if folder is not None and not folder.is_dir():
        raise SetupError(f"There is no folder {folder} on the server: name one with evaluation data, or none.")
    given = {
        "suite": list(suite),
        "evaluation_folder": str(folder.absolute()) if folder else "",
        "requested_by": actor,
        "requested_at": timezone.now(),
    }
    with transaction.atomic():
        preparation, is_new = SeasonPreparation.objects.get_or_create(season=season, defaults=given)
        if not is_new and preparation.is_over:
            again = {"state": State.QUEUED, "message": "", "stage": "", "stage_started_at": None, **given}
            ended = SeasonPreparation.objects.filter(pk=preparation.pk, state=preparation.state)
            is_new = ended.update(**again) == 1
        if is_new:
            Event.record(actor, season, f"Preparation of {season} requested.")
    preparation.refresh_from_db()
    return preparation


def cancel_preparation(preparation: SeasonPreparation, actor: str) -> bool:
    """Stop a preparation; return whether it had not ended. What is done is kept for the next request."""
    with transaction.atomic():
        active = SeasonPreparation.objects.filter(pk=preparation.pk, state__in=(State.QUEUED, State.RUNNING))
        message = f"Cancelled by {actor}. What is done is kept, and a new request continues there."
        if not active.update(state=State.CANCELLED, claim="", message=message, updated_at=timezone.now()):
            return False
        Event.record(actor, preparation.season, f"Preparation of {preparation.season} cancelled.")
    return True


def continue_preparations() -> None:
    """Work on the oldest preparation that waits, or whose process died."""
    if (pk := SeasonPreparation.objects.due().values_list("pk", flat=True).first()) is not None:
        run_preparation(pk)


def run_preparation(pk: int, *, show_progress: bool = False) -> bool:
    """Prepare a season and begin it; return False at once if another process works on a preparation, or none waits.

    Its outcome, also a failure, is in the row.
    """
    preparation = claim_preparation(pk)
    if preparation is None:
        return False
    try:
        message = prepare_and_begin(preparation, RowProgress(preparation), show_progress)
    except ClaimLostError:
        return True
    except KeyboardInterrupt:
        finish_preparation(preparation, State.CANCELLED, "Interrupted. What is done is kept: run it again to continue.")
        raise
    except ValidationError as error:
        finish_preparation(preparation, State.FAILED, "\n".join(error.messages))
    except (SetupError, UserError) as error:
        finish_preparation(preparation, State.FAILED, str(error))
    except OSError as error:
        again = "What is done is kept: request it again when the cause is gone."
        finish_preparation(preparation, State.FAILED, f"{error.strerror or error}. {again}")
    except Exception as error:
        logger.exception("The preparation of season %s failed", preparation.season_id)
        finish_preparation(preparation, State.FAILED, f"{type(error).__name__}: {error}")
    else:
        finish_preparation(preparation, State.DONE, message)
    return True


@transaction.atomic
def claim_preparation(pk: int) -> SeasonPreparation | None:
    """Claim a preparation if it is due and no process works on another: one uses all cores of its machine.

    The lock lets two processes that claim different rows wait for each other. PostgreSQL would otherwise update both,
    since neither sees the other's uncommitted row.
    """
    claim = secrets.token_hex(16)
    unfinished = SeasonPreparation.objects.filter(state__in=(State.QUEUED, State.RUNNING))
    list(unfinished.select_for_update(no_key=True).order_by("pk").values_list("pk"))
    free = SeasonPreparation.objects.due().order_by().filter(~Exists(SeasonPreparation.objects.working()), pk=pk)
    if not free.update(state=State.RUNNING, claim=claim, claimed_until=timezone.now() + CLAIM_TIME, message=""):
        return None
    return SeasonPreparation.objects.select_related("season").get(pk=pk)


def prepare_and_begin(preparation: SeasonPreparation, progress: PreparationProgress, show_progress: bool) -> str:
    """Return what the season took over, and a line for each track that does not fit into it."""
    season = preparation.season
    folder = Path(preparation.evaluation_folder) if preparation.evaluation_folder else None
    # First, since the dataset may take hours: a season begins with all evaluation data or not at all.
    progress.begin_stage("Storing the evaluation data")
    if lacking := evaluation_data.store_evaluation_data(season, preparation.suite, folder, progress):
        raise SetupError(
            f"No evaluation data of {', '.join(lacking)}, so {season} does not begin. Request it again with a "
            "network, with a folder that has the data (--eval-data FOLDER), or with the tasks that you need (--suite)."
        )
    first_season.prepare_season(season, show_progress=show_progress, progress=progress)
    progress.begin_stage("Beginning the season")
    tracks = next_season.begin_season(season)
    queued = next_season.start_ladders(tracks)
    left = [f"{track.slug} stays in {track.season}: {reason}" for track, reason in next_season.list_left_tracks(season)]
    taken = f"{len(tracks)} tracks continue in it; {queued} runs of its baseline's ladder are requested"
    return "\n".join([taken, *left])


def finish_preparation(preparation: SeasonPreparation, state: State, message: str) -> None:
    own = SeasonPreparation.objects.filter(pk=preparation.pk, state=State.RUNNING, claim=preparation.claim)
    with transaction.atomic():
        if own.update(state=state, message=message, claim="", claimed_until=None, updated_at=timezone.now()):
            label = f"Preparation of {preparation.season} {State(state).label.lower()}"
            Event.record(preparation.requested_by, preparation.season, f"{label}: {message}"[:500])
