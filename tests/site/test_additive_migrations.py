"""Migrations are additive, and those of another version are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.utils import timezone

APPS = ("leaderboard", "scheduler", "campaigns")
REMOVALS = (
    *(migrations.RemoveField, migrations.RenameField, migrations.RenameModel, migrations.DeleteModel),
    *(migrations.AlterModelTable, migrations.AddConstraint, migrations.AlterUniqueTogether),
)
LISTED = {"leaderboard.0004_remove_curve_levels_and_bounties", "leaderboard.0005_early_stops"}
"""A breaking migration is listed only if the release before no longer uses what it removes, or none was made."""


def find_breaking_operations(migration: migrations.Migration, state: ProjectState) -> Iterator[str]:
    """Yield the operations after which code of the state before fails. Changes the state."""
    new_models = set()
    for operation in migration.operations:
        if isinstance(operation, migrations.CreateModel):
            new_models.add(operation.name_lower)
        elif getattr(operation, "model_name_lower", "") not in new_models and is_breaking(operation, migration, state):
            yield operation.describe()
        operation.state_forwards(migration.app_label, state)


def is_breaking(operation: Operation, migration: migrations.Migration, state: ProjectState) -> bool:
    if isinstance(operation, REMOVALS):
        return True
    if isinstance(operation, migrations.AddField):
        return not can_be_left_out(operation.field)
    if isinstance(operation, migrations.AlterField):
        before: Any = state.models[migration.app_label, operation.model_name_lower].fields[operation.name]
        is_stricter = before.null and not operation.field.null and not can_be_left_out(operation.field)
        is_shorter = (operation.field.max_length or 0) < (before.max_length or 0)
        return is_stricter or is_shorter or before.get_internal_type() != operation.field.get_internal_type()
    return False


def can_be_left_out(field: models.Field[Any, Any]) -> bool:
    """Whether the database accepts an INSERT without the field. A `default` is Python's and helps only new code."""
    return field.null or field.many_to_many or field.db_default is not models.NOT_PROVIDED


def test_every_migration_is_additive_or_listed(settings: Any) -> None:
    settings.MIGRATION_MODULES = {}  # other tests create the tables without migrations
    loader, state = MigrationLoader(None), ProjectState()
    nodes = list(dict.fromkeys(node for leaf in loader.graph.leaf_nodes() for node in loader.graph.forwards_plan(leaf)))
    found = {}
    for app, name in nodes:
        migration = loader.graph.nodes[app, name]
        if app in APPS:
            found[f"{app}.{name}"] = list(find_breaking_operations(migration, state))
        else:
            state = migration.mutate_state(state, preserve=False)

    assert {name for name, breaking in found.items() if breaking} == LISTED, found


@pytest.mark.parametrize(
    ("operation", "is_additive"),
    [
        (migrations.AddField("run", "note", models.TextField(null=True)), True),
        (migrations.AddField("run", "note", models.TextField(db_default="")), True),
        (migrations.AddField("run", "note", models.TextField(default="")), False),
        (migrations.AlterField("run", "seed", models.IntegerField()), True),
        (migrations.AlterField("run", "seed", models.TextField(null=True)), False),
        (migrations.AlterField("run", "bits", models.FloatField()), False),
        (migrations.AlterField("run", "name", models.CharField(max_length=9)), False),
        (migrations.RemoveField("run", "bits"), False),
        (migrations.CreateModel("Note", [("id", models.BigAutoField(primary_key=True))]), True),
        (migrations.AddIndex("run", models.Index(fields=["seed"], name="by_seed")), True),
    ],
    ids=lambda value: value.describe() if isinstance(value, Operation) else "",
)
def test_operation_that_breaks_running_code_is_found(operation: Operation, is_additive: bool) -> None:
    state = ProjectState()
    fields = [
        ("id", models.BigAutoField(primary_key=True)), ("seed", models.IntegerField()),
        ("bits", models.FloatField(null=True)), ("name", models.CharField(max_length=10)),
    ]  # fmt: skip
    migrations.CreateModel("Run", fields).state_forwards("leaderboard", state)
    migration = migrations.Migration("0009_next", "leaderboard")
    migration.operations = [operation]

    assert bool(list(find_breaking_operations(migration, state))) is not is_additive


TABLE = "CREATE TABLE IF NOT EXISTS django_migrations (id int, app text, name text, applied timestamp)"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("0002_trust", r"scheduler\.0002_trust(.|\n)*from before 0\.1\.0 cannot be upgraded"),
        ("0002_milestones", r"lacks (.|\n)*scheduler\.0001_initial, (.|\n)*with the last version that has them"),
    ],
)
def test_migrate_of_database_of_another_version_says_what_to_do(name: str, message: str, settings: Any) -> None:
    settings.MIGRATION_MODULES = {}
    with connection.cursor() as cursor:
        cursor.execute(TABLE)
        row = [9999, "scheduler", name, timezone.now()]
        cursor.execute("INSERT INTO django_migrations (id, app, name, applied) VALUES (%s, %s, %s, %s)", row)
    with pytest.raises(SystemCheckError, match=message):
        call_command("migrate", verbosity=0, skip_checks=False)
