"""Fixtures of the GitHub tests: an OIDC issuer and the author of a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches

from leaderboard.models import Track
from tests.leaderboard.conftest import Repository
from tests.support import oidc_issuer
from tests.support.github_server import GitHub
from tests.support.oidc_issuer import Issuer
from tests.support.pull_request_author import PullRequestAuthor


@pytest.fixture
def oidc_server(settings: Any) -> Iterator[Issuer]:
    caches["github"].clear()
    with oidc_issuer.run_oidc_server() as server:
        settings.GITHUB_OIDC_ISSUER, settings.GITHUB_OIDC_AUDIENCE = server.url, "http://127.0.0.1:8000"
        settings.GITHUB_REPOSITORY, settings.GITHUB_OIDC_REPOSITORIES = "trains/daily", []
        yield server
    caches["github"].clear()


@pytest.fixture
def pull(github: GitHub, main_repository: Repository, track: Track, tmp_path: Path, settings: Any) -> PullRequestAuthor:
    """A fork with a commit, ready to be opened as a pull request; `mara` may write to the repository."""
    settings.SMOKE_UNAPPROVED = "nobody"
    return PullRequestAuthor.create_fork(github, main_repository, tmp_path / "fork")
