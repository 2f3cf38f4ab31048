"""The files of a publication: the card, the curve and the run's folder.

`README.md`, `curve.png`, `curve.csv`, `results.json`; `dailytrain/` is the run's folder for `dailytrain sample`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from django.conf import settings

from leaderboard import outbox
from leaderboard.charts.cards import draw_run_card
from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.models import OutboxMessage, Publication
from leaderboard.publishing import model_card, weights
from scheduler import storage
from scheduler.hub import FileAddition, HubBusyError, HubError

RUN_FOLDER = "dailytrain"


def build_files(publication: Publication, name: str, folder: Path) -> list[FileAddition]:
    """Return all files of a publication, for the repository `name`.

    What is fetched from a bucket is laid into `folder`.
    """
    blobs = weights.find_weight_blobs(publication.run, publication.name)
    own = [FileAddition(f"{RUN_FOLDER}/{path}", storage.copy_to_disk(blob, folder)) for path, blob in blobs]
    return [*build_descriptions(publication, name), *own]


def build_descriptions(publication: Publication, name: str) -> list[FileAddition]:
    """Return the files that describe the weights, as of now."""
    run = publication.run
    results = {
        "run": run.to_dict(),
        "publication": {"name": publication.name, "step": publication.step},
        "scores": [score.to_dict() for score in model_card.get_scores(publication)],
        "checks": run.checks,
        "config": run.config,
        "dataset_hash": run.season.dataset_hash,
    }
    return [
        FileAddition("README.md", model_card.build_card(publication, name).encode()),
        FileAddition("results.json", json.dumps(results, indent=1, sort_keys=True).encode()),
        FileAddition("curve.png", draw_run_card(run)),
        FileAddition("curve.csv", write_curve_csv(run)),
    ]


@contextmanager
def prepare_upload(queued: OutboxMessage, name: str) -> Iterator[Path]:
    """Yield an empty folder for an upload; renew the message's claim and translate the Hub's errors meanwhile."""
    folder = Path(settings.HOME) / "publishing" / name
    shutil.rmtree(folder, ignore_errors=True)  # the rest of an interrupted attempt
    folder.mkdir(parents=True)
    try:
        with outbox.renew_claim(queued):
            yield folder
    except HubBusyError as error:
        raise outbox.RetryLater(str(error), timedelta(seconds=error.after) if error.after else None) from error
    except HubError as error:
        raise outbox.PermanentError(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
