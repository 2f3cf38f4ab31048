"""Querysets whose SQL is made once. For the few questions that every call of a node asks: to say them in SQL anew costs
several times what it costs the database to answer. PostgreSQL keeps them prepared, with their plans.

    OF_TOKEN = Prepared(lambda: Node.objects.filter(token_hash=Later("token", Node._meta.get_field("token_hash"))))
    OF_TOKEN.rows(token="...")

Annotations become attributes of the rows. Not covered: deferred fields, prefetching, signals of models, and lookups
whose SQL depends on the value (None, lists).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import add
from typing import Any, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, Expression, Model, QuerySet
from django.db.models.query import get_related_populators
from django.db.models.sql import InsertQuery, UpdateQuery

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


class NextNumber(Expression):
    """The number that the next row of a model is to have. It is taken: give it to a row that you write with it."""

    def __init__(self, model: type[Model]) -> None:
        super().__init__(output_field=BigIntegerField())
        self.model = model

    def as_postgresql(self, compiler: Any, connection: BaseDatabaseWrapper) -> Any:
        meta = self.model._meta
        return "nextval(pg_get_serial_sequence(%s, %s))", (f'"{meta.db_table}"', meta.pk.column)

    def as_sqlite(self, compiler: Any, connection: BaseDatabaseWrapper) -> Any:
        """Nobody else can be writing: transactions of ours are immediate."""
        sql = "(SELECT COALESCE(MAX(seq), 0) + 1 FROM sqlite_sequence WHERE name = %s)"
        return sql, (self.model._meta.db_table,)


@dataclass(frozen=True)
class Words:
    """SQL for one kind of database, and what stands for its placeholders: values, and some that come later."""

    sql: str
    values: tuple[Any, ...]

    @classmethod
    def made(cls, sql: str, values: Iterable[Any], connection: BaseDatabaseWrapper) -> Words:
        """On PostgreSQL what is known stands in the SQL: a plan for all values of `state` could not use an index of
        those that are "queued"."""
        given = tuple(values)
        if connection.vendor != "postgresql":
            return cls(sql, given)
        from psycopg.sql import Literal

        *pieces, last = sql.split("%s")
        assert len(pieces) == len(given), "a placeholder for each value"
        spoken = ("%s" if isinstance(value, Later) else escaped(Literal(value).as_string()) for value in given)
        return cls(
            "".join(map(add, pieces, spoken)) + last, tuple(value for value in given if isinstance(value, Later))
        )

    def given(self, values: dict[str, Any], connection: BaseDatabaseWrapper) -> list[Any]:
        return [value.of(values, connection) if isinstance(value, Later) else value for value in self.values]

    def run(self, cursor: Any, values: dict[str, Any], connection: BaseDatabaseWrapper) -> None:
        cursor.execute(self.sql, self.given(values, connection))


@dataclass(frozen=True)
class Reading(Generic[Row]):
    """A compiled SELECT and how its rows become objects."""

    words: Words
    compiler: Any
    converters: dict[int, Any]

    @classmethod
    def made(cls, chosen: QuerySet[Row, Any], connection: BaseDatabaseWrapper) -> Reading[Row]:
        compiler: Any = chosen.query.get_compiler(connection=connection)
        sql, values = compiler.as_sql()
        return cls(Words.made(sql, values, connection), compiler, compiler.get_converters(attrs(compiler.select)))

    def on(self, connection: BaseDatabaseWrapper) -> Any:
        """Return its compiler for a connection; it was made on another thread's."""
        compiler = copy.copy(self.compiler)
        compiler.connection = connection
        return compiler

    def objects(self, rows: list[Any], connection: BaseDatabaseWrapper) -> list[Row]:
        compiler = self.on(connection)
        klass = compiler.klass_info
        begin, end = klass["select_fields"][0], klass["select_fields"][-1] + 1
        names = [column[0].target.attname for column in compiler.select[begin:end]]
        related = get_related_populators(klass, compiler.select, connection.alias)  # type: ignore[call-arg]
        found = []
        for row in compiler.apply_converters(rows, self.converters):
            one = klass["model"].from_db(connection.alias, names, row[begin:end])
            for populator in related:
                populator.populate(row, one)
            for name, column in compiler.annotation_col_map.items():
                setattr(one, name, row[column])
            found.append(one)
        return found


class Prepared(Generic[Row]):
    """A SELECT. `build` is called once for each kind of database, when it is first needed."""

    def __init__(self, build: Callable[[], QuerySet[Row, Any]], *, binary: bool = False) -> None:
        """`binary`: all columns are numbers and words, many of them: PostgreSQL need not write them out."""
        self._build = build
        self._binary = binary
        self._made: dict[str, Reading[Row]] = {}

    def rows(self, **values: Any) -> list[Row]:
        made, rows, connection = self._asked(values)
        return made.objects(rows, connection) if rows else []

    def tuples(self, **values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a queryset that has `values_list`."""
        made, rows, connection = self._asked(values)
        if not made.converters:
            return rows
        return [tuple(row) for row in made.on(connection).apply_converters(rows, made.converters)]

    def first(self, **values: Any) -> Row | None:
        """Return the first row; the queryset should ask for no more than that."""
        return next(iter(self.rows(**values)), None)

    def _asked(self, values: dict[str, Any]) -> tuple[Reading[Row], list[Any], BaseDatabaseWrapper]:
        connection = connections[DEFAULT_DB_ALIAS]
        made = self._made.get(connection.vendor) or self._make(connection)
        with cursor_of(connection, self._binary) as cursor:
            made.words.run(cursor, values, connection)
            return made, cursor.fetchall(), connection

    def _make(self, connection: BaseDatabaseWrapper) -> Reading[Row]:
        return self._made.setdefault(connection.vendor, Reading.made(self._build(), connection))


class PreparedUpdate:
    """An UPDATE of what `build` selects."""

    def __init__(self, build: Callable[[], tuple[QuerySet[Any], dict[str, Any]]]) -> None:
        self._build = build
        self._made: dict[str, Words] = {}

    def run(self, **values: Any) -> int:
        """Return how many rows were changed."""
        connection = connections[DEFAULT_DB_ALIAS]
        made = self._made.get(connection.vendor) or self._make(connection)
        with cursor_of(connection) as cursor:
            made.run(cursor, values, connection)
            return int(cursor.rowcount)

    def run_each(self, values: list[dict[str, Any]]) -> None:
        """Run it with each of these, in their order; PostgreSQL is sent all of them at once."""
        connection = connections[DEFAULT_DB_ALIAS]
        made = self._made.get(connection.vendor) or self._make(connection)
        with cursor_of(connection) as cursor:
            cursor.executemany(made.sql, [made.given(some, connection) for some in values])

    def _make(self, connection: BaseDatabaseWrapper) -> Words:
        made = Words.made(*update_of(*self._build(), connection), connection)
        return self._made.setdefault(connection.vendor, made)


class PreparedTake(Generic[Row]):
    """An UPDATE of the first row of a queryset, which returns the row as it is then. `build` gives three things: that
    queryset, the changes, and another queryset, without conditions, of whose columns and annotations the answer is."""

    def __init__(self, build: Callable[[], tuple[QuerySet[Row], dict[str, Any], QuerySet[Row]]]) -> None:
        self._build = build
        self._made: dict[str, Reading[Row]] = {}

    def first(self, **values: Any) -> Row | None:
        """Return the row, changed; None where there is none."""
        connection = connections[DEFAULT_DB_ALIAS]
        made = self._made.get(connection.vendor) or self._make(connection)
        with cursor_of(connection) as cursor:
            made.words.run(cursor, values, connection)
            rows = cursor.fetchall()
        return made.objects(rows, connection)[0] if rows else None

    def _make(self, connection: BaseDatabaseWrapper) -> Reading[Row]:
        chosen, changes, returned = self._build()
        reading = Reading.made(returned.order_by(), connection)
        columns = [words for _, words, _ in reading.compiler.select]
        # With `=` the choice is made once; with IN a planner may make it again for every row, and take several.
        sql, values = update_of(chosen.model._default_manager.filter(pk=chosen.values("pk")[:1]), changes, connection)
        sql += f" RETURNING {', '.join(column for column, _ in columns)}"
        words = Words.made(sql, (*values, *(value for _, some in columns for value in some)), connection)
        return self._made.setdefault(connection.vendor, replace(reading, words=words))


class PreparedInsert(Generic[Row]):
    """An INSERT of one row of a model, whose number the database gives; or the row has it already (`numbered`)."""

    def __init__(self, model: Callable[[], type[Row]], *, numbered: bool = False) -> None:
        self._model = model
        self._numbered = numbered
        self._made: dict[str, Words] = {}

    def add(self, row: Row) -> Row:
        """Write the row; it has its number then."""
        connection = connections[DEFAULT_DB_ALIAS]
        with cursor_of(connection) as cursor:
            self.words(connection).run(cursor, row.__dict__, connection)
            (row.pk,) = cursor.fetchone()
        row._state.adding, row._state.db = False, connection.alias
        return row

    def words(self, connection: BaseDatabaseWrapper) -> Words:
        return self._made.get(connection.vendor) or self._make(connection)

    def _make(self, connection: BaseDatabaseWrapper) -> Words:
        model = self._model()
        every: tuple[Any, ...] = model._meta.concrete_fields
        fields = [field for field in every if self._numbered or not field.primary_key]
        query = InsertQuery(model)
        query.insert_values(fields, [model(**{field.attname: Later(field.attname, field) for field in fields})])
        compiler: Any = query.get_compiler(connection=connection)
        compiler.returning_fields = [model._meta.pk]
        [(sql, values)] = compiler.as_sql()
        return self._made.setdefault(connection.vendor, Words.made(sql, values, connection))


class PreparedInserts:
    """Several INSERTs, a row each, of which only the last may need its number from the database. On PostgreSQL they are
    one statement, with what the ends of all of them check."""

    def __init__(self, *inserts: PreparedInsert[Any]) -> None:
        self._inserts = inserts
        self._sql = ""

    def add(self, *rows: Model) -> None:
        connection = connections[DEFAULT_DB_ALIAS]
        if connection.vendor != "postgresql":
            for insert, row in zip(self._inserts, rows, strict=True):
                insert.add(row)
            return
        words = [insert.words(connection) for insert in self._inserts]
        self._sql = self._sql or in_one([one.sql for one in words])
        given = [value for one, row in zip(words, rows, strict=True) for value in one.given(row.__dict__, connection)]
        with cursor_of(connection) as cursor:
            cursor.execute(self._sql, given)
            (rows[-1].pk,) = cursor.fetchone()
        for row in rows:
            row._state.adding, row._state.db = False, connection.alias


def in_one(statements: list[str]) -> str:
    """Return one statement of PostgreSQL's that does all of these, and returns what the last returns."""
    *others, last = statements
    return f"WITH {', '.join(f'_{number} AS ({one})' for number, one in enumerate(others))} {last}"


def update_of(
    chosen: QuerySet[Any], changes: dict[str, Any], connection: BaseDatabaseWrapper
) -> tuple[str, tuple[Any, ...]]:
    query: Any = chosen.query.chain(UpdateQuery)
    query.add_update_values(changes)
    sql, values = query.get_compiler(connection=connection).as_sql()
    return sql, tuple(values)


def cursor_of(connection: BaseDatabaseWrapper, binary: bool = False) -> Any:
    """Return a cursor that lets PostgreSQL keep what it is asked; Django's own sends it whole each time. `binary`: and
    answer without writing numbers out."""
    if connection.vendor != "postgresql":
        return connection.cursor()
    from django.db.backends.postgresql.base import ServerBindingCursor

    own: Any = connection
    own.close_if_health_check_failed()
    own.ensure_connection()
    own.connection.prepare_threshold = 0
    kept: Any = ServerBindingCursor
    cursor = kept(own.connection)
    cursor.format = int(binary)
    return own._prepare_cursor(cursor)


def escaped(literal: str) -> str:
    return literal.replace("%", "%%")


def attrs(select: list[tuple[Any, ...]]) -> list[Any]:
    return [column[0] for column in select]
