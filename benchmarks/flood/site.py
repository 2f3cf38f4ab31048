"""The site of a simulated flood: its settings, its tables, and what stands for git and for GitHub's answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from django.apps import apps
from django.core.management import call_command
from django.test.utils import override_settings

from benchmarks.flood.authors import Idea
from benchmarks.pool_simulation.clock import VirtualClock, virtual_time
from leaderboard.integrations.github import client
from leaderboard.submissions import intake
from leaderboard.submissions.intake import CommitSummary
from scheduler import storage

SETTINGS = {
    "STORAGES": {
        "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    },
    "GITHUB_WEBHOOK_SECRET": "a secret",
    "GITHUB_REPOSITORY": "trains/daily",
    "ALLOWED_HOSTS": ["*"],
    "MIDDLEWARE": [],
}


class SilentClient:
    """GitHub's side of comments and checks."""

    def list_comments(self, number: int) -> list[object]:
        return []

    def create_comment(self, number: int, body: str) -> int:
        return 1

    def edit_comment(self, comment: int, body: str) -> None:
        return None

    def update_check(self, *words: object, **fields: object) -> int:
        return 1


@contextmanager
def simulated_site(ideas: Sequence[Idea]) -> Iterator[VirtualClock]:
    """Create the tables in an empty database, from the models; yield the clock."""
    modules = {app.label: None for app in apps.get_app_configs()}
    with TemporaryDirectory() as folder, virtual_time() as clock:
        own = {**SETTINGS, "MIGRATION_MODULES": modules, "SIGNING_KEY": Path(folder) / "signing.key"}
        with override_settings(**own):
            call_command("migrate", run_syncdb=True, verbosity=0)
            release = storage.store_bytes(b"a release")

            def fetch_commit(repository: str, revision: str) -> CommitSummary:
                return ideas[int(revision, 16) - 1].summarize_commit(repository, revision)

            with (
                patch.object(storage, "store_release", lambda: release),
                patch.object(intake, "fetch_commit", fetch_commit),
                patch.object(client, "get_client", lambda repository: SilentClient()),
            ):
                yield clock
