"""Fixtures and helpers of the leaderboard tests: git repositories, a site, its rows."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import caches
from django.test import Client

from leaderboard import outbox
from leaderboard.models import Entry, Night, Publication, Run, Season, Track
from leaderboard.publishing import publications, weights
from leaderboard.schedule import first_season
from leaderboard.schedule.first_season import build_dataset
from leaderboard.submissions import intake
from leaderboard.submissions.intake import CommitSummary, fetch_commit
from leaderboard.submissions.repositories import open_mirror
from scheduler import storage
from scheduler.job_kinds import get_job_kind
from scheduler.models import Checkpoint, Job, JobFile, Node
from tests.conftest import HOME
from tests.support import boards, github_server, hub_server, mail_server, scene
from tests.support.github_server import GitHub
from tests.support.hub_server import Hub
from tests.support.mail_server import MailServer
from tests.support.nights import MONDAY, start_night
from tests.support.node_jobs import finish_job, lease_job
from trainer import protocol

DICTIONARY = 'ARCHITECTURES = {\n    "gpt": "trainer.models.gpt",\n    "smear": "trainer.models.smear",\n}\n'
FILES = {
    "README.md": "A train.\n",
    "trainer/train.py": "print('all aboard')\n",
    "trainer/models/__init__.py": DICTIONARY,
    "trainer/models/gpt.py": "class Model:\n    pass\n",
    "trainer/models/smear.py": "class Model:\n    pass\n",
}
BUILT_DATASETS: dict[tuple[str, str, int | None], tuple[str, int, int, Path]] = {}
FETCHED_COMMITS: dict[str, CommitSummary] = {}
GIT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


@dataclass
class Repository:
    path: Path

    def git(self, *arguments: str) -> str:
        process = subprocess.run(
            ["git", *arguments], cwd=self.path, env=GIT, capture_output=True, text=True, check=True
        )
        return process.stdout.strip()

    def write(self, files: dict[str, str | bytes]) -> Repository:
        for name, contents in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return self

    def commit(self, message: str, files: dict[str, str | bytes] | None = None) -> str:
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def fork(self, path: Path) -> Repository:
        self.git("clone", "--quiet", str(self.path), str(path))
        return Repository(path)


@pytest.fixture(scope="session")
def template_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = Repository(tmp_path_factory.mktemp("first_train"))
    repository.git("init", "--quiet", "--template=", "-b", "main")
    repository.commit("First train", dict(FILES))
    return repository.path


@pytest.fixture
def main_repository(template_repository: Path, tmp_path: Path) -> Repository:
    """The main repository with one commit on `main`."""
    return Repository(Path(shutil.copytree(template_repository, tmp_path / "main")))


@pytest.fixture
def site(main_repository: Repository, tmp_path: Path, settings: Any) -> Any:
    """A site whose main repository is `main`, with folders of its own."""
    settings.MAIN_REPOSITORY = str(main_repository.path)
    settings.MAIN_BRANCH = "main"
    settings.REPOSITORIES = tmp_path / "repositories"
    settings.SIGNING_KEY = tmp_path / "keys" / "signing.key"
    return settings


@pytest.fixture
def github(settings: Any, db: None) -> Iterator[GitHub]:
    """A GitHub server; the site is its App, installed for `trains`, whose repository is `trains/daily`."""
    caches["github"].clear()
    with github_server.run_github_server() as server:
        server.get_or_create_repository("trains/daily")
        settings.GITHUB_API_URL = server.url
        settings.GITHUB_REPOSITORY = "trains/daily"
        settings.GITHUB_APP_ID, settings.GITHUB_PRIVATE_KEY = github_server.APP, github_server.get_private_key()
        settings.GITHUB_WEBHOOK_SECRET = server.hook["secret"] = "between us"
        yield server


@pytest.fixture
def track(site: Any, db: None) -> Track:
    """The default track, nightly, of a prepared season."""
    season = Season.objects.create(
        name="Season 0", corpus="python-docs", tokenizer="bpe:512", limit_bytes=1_000_000, dataset_hash="d" * 64
    )
    return Track.objects.create(
        slug="small",
        name="Small",
        season=season,
        budget="20steps",
        expected_seconds=10,
        config={"model": {"depth": 2}, "train": {"batch": 8, "sequence_length": 64}},
        suite=["blimp"],
        suite_limit=25,
        is_default=True,
        nightly=True,
        is_traced=False,
    )


@pytest.fixture
def maintainer(db: None) -> User:
    return User.objects.create_superuser("mara")


@pytest.fixture
def maintainer_client(client: Client, maintainer: User) -> Client:
    client.force_login(maintainer)
    return client


@pytest.fixture
def hub(settings: Any, tmp_path: Path) -> Iterator[Hub]:
    """A Hub server that the site publishes to."""
    with hub_server.run_hub_server() as server:
        settings.HUB_ENDPOINT, settings.HUB_ORGANIZATION = server.url, hub_server.ORGANIZATION
        settings.HF_TOKEN, settings.HOME = hub_server.TOKEN, tmp_path
        settings.HUB_PUBLISH = ["record", "nightly"]
        yield server


@pytest.fixture
def mail(settings: Any) -> Iterator[MailServer]:
    with mail_server.run_mail_server() as server:
        settings.MAIL_URL = server.url
        yield server


@pytest.fixture
def node(db: None) -> Node:
    return Node.objects.create(name="cellar", trusted=True, state=Node.State.ONLINE, hardware={"cpus": 2, "gpus": []})


@pytest.fixture
def capable_node(node: Node) -> Node:
    """The node with hardware and a sandbox that any job accepts."""
    node.hardware = protocol.Hardware(
        hostname="cellar",
        platform="Linux",
        python="3.11",
        cpus=2,
        memory_bytes=2**35,
        disk_free_bytes=2**40,
        sandboxes=("bubblewrap",),
    ).model_dump(mode="json")
    node.save()
    return node


def fetch_commit_once(repository: str, revision: str) -> CommitSummary:
    """Fetch `main`, or copy the mirror of a test that has fetched the same commit: git takes 15 processes."""
    folder, sha = open_mirror(repository).folder, Path(repository, ".git/refs/heads/main").read_text().strip()
    copy = HOME / "mirrors" / sha
    if sha in FETCHED_COMMITS and not folder.exists():
        shutil.copytree(copy, folder)
        folder.with_suffix(".lock").touch()
        return replace(FETCHED_COMMITS[sha], repository=repository)
    summary = fetch_commit(repository, revision)
    if sha not in FETCHED_COMMITS:
        shutil.copytree(folder, copy)
        FETCHED_COMMITS[sha] = summary
    return summary


@pytest.fixture
def proposed_entry(main_repository: Repository, track: Track, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A proposed entry of main's own `smear`."""
    with monkeypatch.context() as patch:
        patch.setattr(intake, "fetch_commit", fetch_commit_once)
        return intake.submit_entry(str(main_repository.path), "main", "Smeared keys", "smear", track)


@pytest.fixture
def run(proposed_entry: Entry) -> Run:
    """The queued run of an approved entry."""
    (queued_run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    return queued_run


def create_checkpoint(job: Job, step: int) -> Checkpoint:
    """Create a checkpoint and `run.json` of the job, as uploads of a node do."""
    weights = storage.store_bytes(b"weights at %d" % step)
    files = [storage.build_file_reference(weights, f"checkpoints/step-{step:08d}/model.safetensors").model_dump()]
    manifest = {"step": step, "files": files}
    checkpoint = Checkpoint.objects.create(job=job, step=step, manifest=manifest, seconds=step * 0.5)
    checkpoint.blobs.add(weights)
    if not job.files.exists():
        JobFile.objects.create(job=job, path="run.json", blob=storage.store_bytes(b'{"format": 1, "arch": "smear"}'))
    return checkpoint


def publish_release(run: Run, checkpoint: Checkpoint, name: str) -> Publication:
    """Publish a checkpoint's weights as a release."""
    blobs = weights.get_checkpoint_blobs(checkpoint).values()
    reason = f"{name}, at step {checkpoint.step}."
    publication = publications.keep_weights(run, checkpoint.manifest, blobs, name, reason, is_release=True)
    publications.enqueue_upload(publication)
    return publication


def build_train_row(step: int, loss: float = 3.0, **fields: Any) -> dict[str, Any]:
    row = {"kind": "train", "step": step, "fraction": step / 20, "tokens": step * 512, "flops": step * 1e9}
    return {**row, "seconds": step * 0.5, "loss": loss, "learning_rate": 0.01, "gradient_norm": 1.0, **fields}


SCORE_RESULT: dict[str, Any] = {
    "bits_per_byte": 2.5,
    "nats_per_token": 5.5,
    "stderr": 0.01,
    "tokens": 1000,
    "bytes": 3200,
    "documents": 12,
    "arch": "smear",
    "parameters": 123456,
    "train_flops": 2e10,
    "train_seconds": 10.0,
    "step": 20,
    "checks": {"look_ahead": {"nats_per_token": 1e-6, "stderr": 2e-6, "is_beyond_rounding": False}},
    "suite": {"blimp": {"acc": [0.55, 0.02]}},
    "suite_missing": ["hellaswag"],
}


def finish_run(run: Run, node: Node, score_result: dict[str, Any] | None = None) -> Run:
    """Take a queued run, or one that trains, through training and scoring."""
    run.job.refresh_from_db()
    if run.job.state != Job.State.LEASED:
        lease_job(run.job, node)
    get_job_kind(run.job).handle_metrics(run.job, [build_train_row(10), build_train_row(20, 2.5)])
    create_checkpoint(run.job, 20)
    finish_job(run.job, {"step": 20})
    run.refresh_from_db()
    lease_job(run.score_job, node)
    finish_job(run.score_job, score_result or SCORE_RESULT)
    run.refresh_from_db()
    return run


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the corpus of a season that takes a moment to prepare."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"Platform {number} is closed on day {number}. " * 30)
    return f"files:{folder}/*.txt"


def build_dataset_once(season: Season, *progress: Any) -> tuple[str, int, int, Path]:
    key = season.corpus, season.tokenizer, season.limit_bytes
    if key not in BUILT_DATASETS:
        BUILT_DATASETS[key] = build_dataset(season, *progress)
    return BUILT_DATASETS[key]


@pytest.fixture
def prepared_corpus(small_corpus: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same corpus, prepared once for all tests that use it."""
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(Path(small_corpus.removeprefix("files:")).with_name("cache")))
    monkeypatch.setattr(first_season, "build_dataset", build_dataset_once)
    return small_corpus


@pytest.fixture
def monday_night(track: Track) -> Night:
    return start_night(MONDAY)


@pytest.fixture
def finished_monday_night(monday_night: Night, node: Node) -> Night:
    """Monday's nightly run is finished, and its commit is the season's baseline."""
    finish_run(monday_night.run, node)
    monday_night.track.season.baseline = monday_night.run.entry
    monday_night.track.season.save()
    return monday_night


@pytest.fixture
def full_track(db: None) -> Track:
    """A track with a full ladder and an unrelated node that can confirm records."""
    track, baseline = boards.create_ladder_track()
    boards.fill_ladder(baseline)
    scene.create_node("unrelated", owner=User.objects.create(username="uma"))
    return track


@pytest.fixture
def instant_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process messages of the outbox when their transaction has ended, as a worker does soon after."""
    monkeypatch.setattr(outbox, "notify_worker", lambda message: outbox.process_message(message.pk))
