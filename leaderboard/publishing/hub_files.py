"""The files of a publication: the card, the curve, the run's folder, and the weights in the format of transformers.

`README.md`, `curve.png`, `curve.csv`, `results.json`; `dailytrain/` is the run's folder for `dailytrain sample`; the
files of transformers lie at the top if it supports the architecture.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path, PurePosixPath

from django.conf import settings

from leaderboard import outbox
from leaderboard.charts.cards import draw_run_card
from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.models import OutboxMessage, Publication
from leaderboard.publishing import model_card, weights
from scheduler import storage
from scheduler.hub import FileAddition, HubBusyError, HubError
from trainer.checkpoint.formats import FormatError, gpt_neox
from trainer.protocol.files import WEIGHTS_INDEX, is_weights_file

RUN_FOLDER = "dailytrain"
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def build_files(publication: Publication, name: str, folder: Path) -> list[FileAddition]:
    """Return all files of a publication, for the repository `name`.

    What has to be made, or fetched from a bucket, is laid into `folder`.
    """
    blobs = weights.find_weight_blobs(publication.run, publication.name)
    files = {path: storage.copy_to_disk(blob, folder) for path, blob in blobs}
    transformers = list(convert_for_transformers(publication, files, folder))
    own = [FileAddition(f"{RUN_FOLDER}/{path}", file) for path, file in files.items()]
    return [*build_descriptions(publication, name, bool(transformers)), *own, *transformers]


def build_descriptions(publication: Publication, name: str, with_transformers: bool) -> list[FileAddition]:
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
        FileAddition("README.md", model_card.build_card(publication, name, with_transformers).encode()),
        FileAddition("results.json", json.dumps(results, indent=1, sort_keys=True).encode()),
        FileAddition("curve.png", draw_run_card(run)),
        FileAddition("curve.csv", write_curve_csv(run)),
    ]


def convert_for_transformers(publication: Publication, files: dict[str, Path], folder: Path) -> Iterator[FileAddition]:
    """Yield the weights in the format of transformers; nothing for an architecture that it does not support."""
    named = {PurePosixPath(path).name: file for path, file in files.items()}
    sources = {name: file for name, file in named.items() if is_weights_file(name) and name != WEIGHTS_INDEX}
    if not sources or not gpt_neox.is_supported(publication.run.config):
        return
    made = folder / "transformers"
    made.mkdir()
    try:
        config, index = gpt_neox.convert_weights(publication.run.config, sources, made)
    except FormatError:  # the entry's own litgpt is another: its weights are published as they are
        return
    yield FileAddition("config.json", json.dumps(config, indent=1).encode())
    for name in sources:
        yield FileAddition(name, made / name)
    if len(sources) > 1:
        yield FileAddition(WEIGHTS_INDEX, json.dumps(index, indent=1).encode())
    if tokenizer := named.get("tokenizer.json"):
        yield FileAddition("tokenizer.json", tokenizer)
        yield FileAddition("tokenizer_config.json", json.dumps(TOKENIZER_CONFIG, indent=1).encode())


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
