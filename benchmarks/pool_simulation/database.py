"""A throwaway database in memory for this thread. The site's own database is not opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.db.utils import load_backend
from django.test.utils import override_settings

KIND = "benchmarks.pool_simulation.job_kind.SimulatedJobKind"
SETTINGS = {
    "JOB_KINDS": {"train": KIND, "score": KIND, "self_test": "scheduler.self_tests.SelfTestHandler"},
    "STORAGES": {"default": {"BACKEND": "django.core.files.storage.InMemoryStorage"}},
    "LEASE_SECONDS": 60.0,
}
"""Settings of a real site."""


@contextmanager
def throwaway_database(*labels: str) -> Iterator[None]:
    """Send all queries of this thread to a new SQLite database in memory, with the tables of these apps too."""
    address = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    configured = connections.configure_settings(address)["default"]
    own = connections["default"]
    fresh = load_backend(configured["ENGINE"]).DatabaseWrapper(configured, "default")
    connections["default"] = fresh
    try:
        with TemporaryDirectory() as folder, override_settings(**SETTINGS, SIGNING_KEY=Path(folder) / "signing.key"):
            create_tables(fresh, ("scheduler", "django_celery_beat", *labels))
            yield
    finally:
        connections["default"] = own
        fresh.close()


def create_tables(database: BaseDatabaseWrapper, labels: Iterable[str]) -> None:
    """Create the tables from the models: the migrations of the whole site would take seconds."""
    with database.schema_editor() as editor:
        models: list[type[Model]] = [ContentType, Permission, Group, User]
        for model in (*models, *chain.from_iterable(apps.get_app_config(label).get_models() for label in labels)):
            editor.create_model(model)
