"""Publishes the tokens of a season, once, as a dataset on the Hub: one outbox message for each season.

manifest.json      hash of the dataset; size, tokens and SHA-256 of every file
tokenizer.json
train/*.bin, dev/*.bin
README.md

The test split stays on the site. A season never changes, so a file that the repository has is not sent again. The
manifest comes with the last commit. Nodes download from the site, by hash.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.text import slugify

from leaderboard import outbox
from leaderboard.models import OutboxMessage, Season, SeasonFile
from leaderboard.models.seasons import MANIFEST
from leaderboard.publishing import hub_files, publications
from scheduler import hub, storage
from scheduler.markdown import escape_markdown
from scheduler.models import SITE_ACTOR, Event
from trainer.data.corpora import CorpusInfo, describe_corpora

KIND = "hub.season"
PUBLISH_OPTION = "season"
"""Value of HUB_PUBLISH."""
TEST_SPLIT = "test/"
SHARDS_PER_COMMIT = 20
"""2.7 GB: a failed upload of a large dataset keeps the batches before it."""
EXAMPLE = """```sh
hf download {name} --repo-type dataset --local-dir dataset
dailytrain train --dataset dataset
```"""


def enqueue_seasons() -> int:
    """Queue the stored seasons whose license allows it, each once; return how many are new."""
    if not publications.is_connected() or PUBLISH_OPTION not in settings.HUB_PUBLISH:
        return 0
    known = set(OutboxMessage.objects.filter(kind=KIND).values_list("key", flat=True))
    stored = Season.objects.filter(files__kind=SeasonFile.Kind.DATASET, files__path=MANIFEST)
    new = [season for season in stored if get_key(season) not in known and get_corpus_info(season).hub_license]
    for season in new:
        outbox.enqueue_once(KIND, get_key(season), {"season": season.pk})
    return len(new)


def get_key(season: Season) -> str:
    return f"{KIND}:{season.pk}"


def get_corpus_info(season: Season) -> CorpusInfo:
    return describe_corpora()[season.corpus.partition(":")[0]]


def get_repository_name(season: Season) -> str:
    return f"{settings.HUB_ORGANIZATION}/{slugify(season.name)[:60] or 'season'}-{season.dataset_hash[:8]}"


def get_hub_url(season: Season) -> str:
    """Return the dataset's URL on the Hub; empty until it is published."""
    done = OutboxMessage.objects.filter(key=get_key(season), state=OutboxMessage.State.DONE).first()
    return f"{settings.HUB_ENDPOINT}/datasets/{done.result['repository']}" if done else ""


def publish_season(queued: OutboxMessage) -> Mapping[str, Any]:
    """Handle a message of kind `KIND`: upload what the Hub does not have."""
    season = Season.objects.get(pk=queued.payload["season"])
    if not publications.is_connected():
        raise outbox.PermanentError(publications.NOT_CONFIGURED)
    name = get_repository_name(season)
    repository = hub.Repository(name, endpoint=settings.HUB_ENDPOINT, token=settings.HF_TOKEN, kind="dataset")
    with hub_files.prepare_upload(queued, f"season-{season.pk}") as folder:
        commit = upload_season(season, repository, folder)
    Event.record(SITE_ACTOR, season, f"The tokens of {season} were published as {name} on the Hub.")
    return {"repository": name, "commit": commit}


def upload_season(season: Season, repository: hub.Repository, folder: Path) -> str:
    """Commit the files in batches; return the last commit. Raises HubError. `folder`: for temporary files."""
    repository.create_if_missing()
    mark = f"{settings.SITE_URL} season {season.pk} {season.dataset_hash}"
    earlier = repository.list_commits()
    if others := {mark for commit in earlier for mark in commit.marks} - {mark}:
        raise hub.HubError(f"{repository.name} was published from {min(others)}; nothing was changed.")
    files = season.files.filter(kind=SeasonFile.Kind.DATASET).exclude(path__startswith=TEST_SPLIT)
    blobs = {file.path: file.blob for file in files.select_related("blob")}
    uploaded = set(repository.list_files())
    if MANIFEST in uploaded:
        return earlier[0].id
    shards = sorted(path for path in blobs if "/" in path and path not in uploaded)
    for start in range(0, len(shards), SHARDS_PER_COMMIT):
        batch = shards[start : start + SHARDS_PER_COMMIT]
        part = folder / str(start)
        part.mkdir()
        additions = [hub.FileAddition(path, storage.copy_to_disk(blobs[path], part)) for path in batch]
        repository.publish(additions, f"{batch[0]} to {batch[-1]}", mark, repository.list_commits())
        shutil.rmtree(part)
    manifest = storage.read_blob(blobs[MANIFEST])
    small = [hub.FileAddition(path, storage.read_blob(blob)) for path, blob in blobs.items() if "/" not in path]
    card = hub.FileAddition("README.md", build_card(season, repository.name, json.loads(manifest)).encode())
    return repository.publish([*small, card], f"Dataset {season.dataset_hash[:12]}", mark, repository.list_commits())


def build_card(season: Season, name: str, manifest: dict[str, Any]) -> str:
    """Return the dataset card: Markdown with the Hub's own header."""
    info = get_corpus_info(season)
    metadata = {
        "license": info.hub_license,
        "pretty_name": season.name,
        "task_categories": ["text-generation"],
        "tags": ["tokenized", "dailytrain"],
    }
    header = "\n".join(f"{field}: {json.dumps(value)}" for field, value in metadata.items())
    rows = [
        f"| {split} | {counts['documents']:,} | {counts['tokens']:,} | {counts['bytes']:,} |"
        for split, counts in manifest["splits"].items()
    ]
    about = (
        f"The dataset of a season of [{escape_markdown(settings.SITE_NAME)}]({settings.SITE_URL}), as its runs "
        f"read it. Hash: `{season.dataset_hash}`."
    )
    source = (
        f"Text: `{season.corpus}`, {info.source}. License: {info.license}. Tokenizer: `{season.tokenizer}`, "
        f"{season.vocabulary_size:,} entries."
    )
    layout = (
        "The files of train and dev are little-endian unsigned integers of 16 bits, or of 32 where the vocabulary "
        "needs them; each document follows an end-of-text token. The test split is not published here: scores read a "
        "sample of it, which a secret draws until the season ends."
    )
    table = "\n".join(["| split | documents | tokens | bytes of text |", "|---|---:|---:|---:|", *rows])
    title = f"# {escape_markdown(season.name)}, tokenized"
    parts = [f"---\n{header}\n---", title, about, source, table, layout, EXAMPLE.format(name=name)]
    return "\n\n".join(parts) + "\n"
