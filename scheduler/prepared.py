"""Querysets whose SQL is made once. For the few questions that every call of a node asks: to say them in SQL anew costs
several times what it costs the database to answer.

    OF_TOKEN = Prepared(lambda: Node.objects.filter(token_hash=Later("token", Node._meta.get_field("token_hash"))))
    OF_TOKEN.rows(token="...")

Not covered: annotations, deferred fields, prefetching, and lookups whose SQL depends on the value (None, lists).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression, Model, QuerySet
from django.db.models.query import get_related_populators
from django.db.models.sql import UpdateQuery

Row = TypeVar("Row", bound=Model)


class Later(Expression):
    """A value of a field's type that is known only when the question is asked."""

    def __init__(self, name: str, field: Any) -> None:
        super().__init__(output_field=field)
        self.name = name

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> Any:
        return "%s", (self,)

    def of(self, values: dict[str, Any], connection: BaseDatabaseWrapper) -> Any:
        return self.output_field.get_db_prep_value(values[self.name], connection, prepared=False)


@dataclass(frozen=True)
class Words:
    """SQL for one kind of database, and what stands for its placeholders: values, and some that come later."""

    sql: str
    values: tuple[Any, ...]

    def run(self, cursor: Any, values: dict[str, Any], connection: BaseDatabaseWrapper) -> None:
        given = [value.of(values, connection) if isinstance(value, Later) else value for value in self.values]
        cursor.execute(self.sql, given)


@dataclass(frozen=True)
class Reading(Generic[Row]):
    """A compiled SELECT and how its rows become objects."""

    words: Words
    compiler: Any
    converters: dict[int, Any]

    def objects(self, rows: list[Any], connection: BaseDatabaseWrapper) -> list[Row]:
        compiler = copy.copy(self.compiler)
        compiler.connection = connection
        klass = compiler.klass_info
        begin, end = klass["select_fields"][0], klass["select_fields"][-1] + 1
        names = [column[0].target.attname for column in compiler.select[begin:end]]
        related = get_related_populators(klass, compiler.select, connection.alias)  # type: ignore[call-arg]
        found = []
        for row in compiler.apply_converters(rows, self.converters):
            one = klass["model"].from_db(connection.alias, names, row[begin:end])
            for populator in related:
                populator.populate(row, one)
            found.append(one)
        return found


class Prepared(Generic[Row]):
    """A SELECT. `build` is called once for each kind of database, when it is first needed."""

    def __init__(self, build: Callable[[], QuerySet[Row]]) -> None:
        self._build = build
        self._made: dict[str, Reading[Row]] = {}

    def rows(self, **values: Any) -> list[Row]:
        connection = connections[DEFAULT_DB_ALIAS]
        made = self._made.get(connection.vendor) or self._make(connection)
        with connection.cursor() as cursor:
            made.words.run(cursor, values, connection)
            rows = cursor.fetchall()
        return made.objects(rows, connection) if rows else []

    def first(self, **values: Any) -> Row | None:
        """Return the first row; the queryset should ask for no more than that."""
        return next(iter(self.rows(**values)), None)

    def _make(self, connection: BaseDatabaseWrapper) -> Reading[Row]:
        compiler = self._build().query.get_compiler(connection=connection)
        sql, values = compiler.as_sql()
        made = Reading[Row](Words(sql, tuple(values)), compiler, compiler.get_converters(attrs(compiler.select)))
        self._made[connection.vendor] = made
        return made


class PreparedUpdate:
    """An UPDATE of what `build` selects."""

    def __init__(self, build: Callable[[], tuple[QuerySet[Any], dict[str, Any]]]) -> None:
        self._build = build
        self._made: dict[str, Words] = {}

    def run(self, **values: Any) -> int:
        """Return how many rows were changed."""
        connection = connections[DEFAULT_DB_ALIAS]
        made = self._made.get(connection.vendor) or self._make(connection)
        with connection.cursor() as cursor:
            made.run(cursor, values, connection)
            return int(cursor.rowcount)

    def _make(self, connection: BaseDatabaseWrapper) -> Words:
        chosen, changes = self._build()
        query: Any = chosen.query.chain(UpdateQuery)
        query.add_update_values(changes)
        sql, values = query.get_compiler(connection=connection).as_sql()
        return self._made.setdefault(connection.vendor, Words(sql, tuple(values)))


def attrs(select: list[tuple[Any, ...]]) -> list[Any]:
    return [column[0] for column in select]
