"""Tables of SQL databases: read by ranges of a key, through SQLAlchemy.

    sqlite:////data/digits.db?table=digits
    postgresql://reader@db.example/images?table=public.digits&columns=label,pixels

A URL is SQLAlchemy's, and three parameters are ours: `table`, the name of a table or a view, perhaps with its schema; `columns`, which are
read (none: all); and `key`, the column whose ranges are the shards. The other parameters are the driver's. A URL holds no password, since
job files, logs and pages show it: the environment has it (`PGPASSWORD`, or `PGPASSFILE`, which libpq reads).

A record is a dictionary of columns, with the values that the driver gives. A shard is the rows whose keys are in [start, end), read by one
statement, so that a row that is inserted or deleted meanwhile is in it or is not. The keys at which shards begin are found by the database:
only they are transferred.

A program imports this file, and `data.formats.tables` runs it as a script in the program's own Python, to cut a table. So it imports
nothing of ours, and gets SQLAlchemy handed in.

    python sql.py URL KEY [ROWS]     print {path, cuts, end}, or {error, mend}, as JSON; KEY may be empty; ROWS: of a shard
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SQLITE, POSTGRESQL = "sqlite", "postgresql"
MEMORY = ":memory:"  # for SQLite's file
NO_PACKAGE = "no-package"  # anchors of the page of errors
BAD_TABLE = "bad-table"
_DRIVERS = ("psycopg", "psycopg2", "pg8000")  # of PostgreSQL, where the URL names none: the first that is installed
_OURS = ("table", "columns", "key")
_PASSWORD = re.compile(r"passw|passphrase|secret|token", re.I)  # in names of parameters
_WANTED, _FEWEST, _MOST = 1024, 256, 100_000  # shards of a table; and rows of a shard
_FETCHED = 1024  # rows that come from the database at once
_NAMED = 20  # names in a message


class BadTable(OSError):
    """A table that cannot be read, or cannot be cut. `mend`: what to do. `anchor`: of the page of errors."""

    def __init__(self, message: str, mend: str = "", anchor: str = BAD_TABLE) -> None:
        super().__init__(f"{message}: {mend}" if mend else message)
        self.message, self.mend, self.anchor = message, mend, anchor


class Place(NamedTuple):
    """A URL in its parts. `database`: the URL without our parameters. `columns`: none are all."""

    database: str
    table: str
    columns: tuple[str, ...] = ()
    key: str = ""

    @property
    def url(self) -> str:
        values = {"table": self.table, "columns": ",".join(self.columns), "key": self.key}
        ours = "&".join(f"{name}={quote(value, safe=',.')}" for name, value in values.items() if value)
        return f"{self.database}{'&' if '?' in self.database else '?'}{ours}"

    @property
    def words(self) -> str:
        """Name the table and its database."""
        return f"the table {self.table} of {self.database.partition('?')[0]}"


def file_of(url: str) -> str | None:
    """Return the path of SQLite's file, relative or not; None where the URL is of another database."""
    if _dialect(url) != SQLITE:
        return None
    host, _, path = url.partition("://")[2].partition("?")[0].partition("/")
    return "" if host else path


def parse(url: str) -> Place:
    """Return the parts of a URL. Raises BadTable, which shows no password, where it has one, or names no table."""
    begin, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    user = url.partition("://")[2].rpartition("@")[0] if _dialect(url) != SQLITE else ""
    if ":" in user or any(_PASSWORD.search(name) for name, _ in pairs):
        mend = "take it out, and say secrets: {PGPASSWORD: }, which takes the variable PGPASSWORD along, or name a PGPASSFILE"
        raise BadTable("the URL of the table holds a password, which everybody would see who sees the job", mend)
    ours = {name: value for name, value in pairs if name in _OURS}
    others = "&".join(f"{quote(name)}={quote(value, safe='/')}" for name, value in pairs if name not in _OURS)
    database = f"{begin}?{others}" if others else begin
    if not ours.get("table"):
        raise BadTable(f"{database} names no table", "append ?table=NAME")
    if file_of(url) in ("", MEMORY):
        raise BadTable(f"{begin} names no file", "a path has four slashes: sqlite:////data/digits.db?table=digits")
    columns = tuple(name for name in ours.get("columns", "").split(",") if name)
    return Place(database, ours["table"], columns, ours.get("key", ""))


def _dialect(url: str) -> str:
    return url.partition("://")[0].partition("+")[0].lower()


class Table:
    """A table, or a view, that is open for reading. Raises BadTable where it cannot be read."""

    def __init__(self, sqlalchemy: Any, url: str) -> None:
        self.url, self.place = url, parse(url)
        self._sql = sqlalchemy
        self._engine = _engine(sqlalchemy, self.place)
        schema, _, name = self.place.table.rpartition(".")
        self._name, self._schema = name, schema or None
        self._from = sqlalchemy.table(name, schema=self._schema)
        self._key = sqlalchemy.column(self.place.key, sqlalchemy.BigInteger)

    def close(self) -> None:
        self._engine.dispose()

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows whose keys are in [start, end), by key; without borders all rows."""
        sql, place = self._sql, self.place
        columns = [sql.column(name) for name in place.columns] or [sql.literal_column("*")]
        query = sql.select(*columns).select_from(self._from)
        if start is not None:
            query = query.where(self._key >= start, self._key < end)
        if place.key:
            query = query.order_by(self._key)
        with self._connection() as connection:
            is_short = start is not None and end is not None and end - start <= _FETCHED
            # Without a cursor of the server's and its transaction: two answers are waited for, and not seven.
            options = {"isolation_level": "AUTOCOMMIT"} if is_short else {"stream_results": True}
            rows = connection.execution_options(**options).execute(query)
            names = list(rows.keys())
            for part in rows.partitions(_FETCHED):
                for row in part:
                    yield dict(zip(names, row, strict=True))

    def cut(self, key: str = "", rows: int = 0) -> dict[str, Any]:
        """Return `path`, the URL with its key; `cuts`, the keys at which shards begin; and `end`, the key at which the last one ends.

        `key`: the column; "": the URL's, else the primary key. `rows`: of a shard; 0: by the number of all. Raises BadTable where the key
        is not unique, or holds anything but whole numbers.
        """
        sql = self._sql
        with self._connection() as connection:
            key, is_indexed = self._checked_key(connection, key or self.place.key)
            column = sql.column(key)
            count = connection.scalar(sql.select(sql.func.count()).select_from(self._from))
            rows = rows or max(_FEWEST, min(_MOST, -(-count // _WANTED)))
            firsts = self._firsts_by_index(column, rows) if is_indexed else self._firsts_by_sorting(column, rows)
            cuts = [int(value) for (value,) in connection.execute(firsts)]
            last = connection.scalar(sql.select(sql.func.max(column)).select_from(self._from))
        end = max(cuts[-1:] + ([int(last)] if last is not None else []), default=-1) + 1
        return {"path": self.place._replace(key=key).url, "cuts": cuts, "end": end}

    def _firsts_by_index(self, column: Any, rows: int) -> Any:
        """Return the query for the least key, and each one that is `rows` rows behind the one before. It walks once through an index."""
        sql = self._sql
        first = sql.select(sql.func.min(column).label("k")).select_from(self._from).cte("firsts", recursive=True)
        following = sql.select(column).select_from(self._from).where(column > first.c.k).order_by(column)
        following = following.limit(1).offset(rows - 1).correlate(first).scalar_subquery()
        firsts = first.union_all(sql.select(following).where(first.c.k.is_not(None)))
        return sql.select(firsts.c.k).where(firsts.c.k.is_not(None)).order_by(firsts.c.k)

    def _firsts_by_sorting(self, column: Any, rows: int) -> Any:
        """Return the query for the same keys where no index is known. It sorts once, which takes ten times as long as walking an index."""
        sql = self._sql
        number = sql.func.row_number().over(order_by=column)
        numbered = sql.select(column.label("k"), number.label("n")).select_from(self._from).subquery()
        return sql.select(numbered.c.k).where((numbered.c.n - 1) % rows == 0).order_by(numbered.c.k)

    def _checked_key(self, connection: Any, key: str) -> tuple[str, bool]:
        """Return the name of the key, and whether it has an index, once the table, its columns and its keys were looked at."""
        sql, words = self._sql, self.place.words
        inspector = sql.inspect(connection)
        try:
            columns = {column["name"]: column for column in inspector.get_columns(self._name, self._schema)}
        except sql.exc.NoSuchTableError:
            names = [*inspector.get_table_names(self._schema), *inspector.get_view_names(self._schema)]
            raise BadTable(
                f"{words} does not exist", f"there are {_listed(names)}" if names else "there is none"
            ) from None
        primary = inspector.get_pk_constraint(self._name, self._schema)["constrained_columns"]
        if not key and len(primary) != 1:
            mend = "name a column of whole numbers that is unique and has no nulls, by key: COLUMN"
            raise BadTable(f"{words} has no primary key of one column, by which to cut it", mend)
        key = key or primary[0]
        for name in (key, *self.place.columns):
            if name not in columns:
                raise BadTable(f"{words} has no column {name}", f"it has {_listed(columns)}")
        mend = "name another column by key:, of whole numbers, unique and without nulls"
        type_, is_set = columns[key]["type"], not columns[key]["nullable"]
        if self._engine.dialect.name == SQLITE:  # which keeps any value in any column, and null in many a primary key
            kind = sql.func.typeof(sql.column(key))
            others = sql.select(sql.func.count(), sql.func.count(sql.column(key))).select_from(self._from)
            count, values = connection.execute(others.where(kind != "integer")).one()
            if values:
                raise BadTable(f"the column {key} of {words} has {values:,} values that are not whole numbers", mend)
            is_set = not count
        elif not isinstance(type_, sql.Integer):
            raise BadTable(f"the column {key} of {words} is {type_}, and ranges need whole numbers", mend)
        unique = [primary, *(e["column_names"] for e in inspector.get_unique_constraints(self._name, self._schema))]
        is_indexed = [key] in unique
        if not (is_indexed and is_set):  # else its definition excludes nulls and repetitions
            self._check_values(connection, key, mend)
        return key, is_indexed

    def _check_values(self, connection: Any, key: str, mend: str) -> None:
        """Raise BadTable where the key has nulls, or a value twice."""
        sql, words = self._sql, self.place.words
        column = sql.column(key)
        counts = sql.select(sql.func.count(), sql.func.count(column), sql.func.count(column.distinct()))
        rows, values, different = connection.execute(counts.select_from(self._from)).one()
        if nulls := rows - values:
            raise BadTable(f"the column {key} of {words} is null in {nulls:,} of {rows:,} rows", mend)
        if twice := values - different:
            raise BadTable(f"the column {key} of {words} is not unique: {twice:,} of {rows:,} rows repeat a key", mend)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """Open a connection, and turn errors of the database into ours."""
        words, errors = self.place.words, self._sql.exc
        try:
            connection = self._engine.connect()
        except (errors.DBAPIError, OSError) as error:
            mend = "check that it runs, and the user's rights there; PGPASSWORD or PGPASSFILE has the password"
            mend = "" if self._engine.dialect.name == SQLITE else mend
            raise BadTable(f"the database of {words} cannot be reached: {_reason(error)}", mend) from None
        try:
            with connection:
                yield connection
        except errors.DBAPIError as error:
            raise BadTable(f"{words} cannot be read: {_reason(error)}") from error


def _engine(sqlalchemy: Any, place: Place) -> Any:
    """Return SQLAlchemy's engine of a place. Raises BadTable where the URL cannot be used, or a package is missing."""
    try:
        return sqlalchemy.create_engine(_full_url(sqlalchemy, place), pool_size=1, pool_pre_ping=True)
    except ImportError as error:
        raise _no_package(error.name or str(error), place) from error
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        raise BadTable(f"the URL of {place.words} cannot be used: {_reason(error)}") from None


def _full_url(sqlalchemy: Any, place: Place) -> Any:
    """Return the URL with driver and password. SQLite's files are opened for reading alone: another opening would make a missing one."""
    url = sqlalchemy.make_url(place.database)
    dialect, _, driver = url.drivername.partition("+")
    if dialect == SQLITE:
        path = file_of(place.database) or ""
        if not os.path.isfile(path):
            mend = "check the path; on a cluster every node must see it, else put the table into PostgreSQL"
            raise BadTable(f"the file of {place.words} does not exist", mend)
        return url.set(database=f"file:{quote(os.path.abspath(path))}").update_query_dict({"mode": "ro", "uri": "true"})
    if not driver:
        url = url.set(drivername=f"{dialect}+{_driver(place)}")
    password = os.environ.get("PGPASSWORD")  # not every driver looks for it
    return url.set(password=password) if password else url


def _driver(place: Place) -> str:
    from importlib.util import find_spec

    for name in _DRIVERS:
        if find_spec(name) is not None:
            return name
    raise _no_package(_DRIVERS[0], place)


def _no_package(name: str, place: Place) -> BadTable:
    mend = f"pip install '{name}[binary]'" if name == "psycopg" else f"pip install {name}"
    return BadTable(f"reading {place.words} needs {name} in the program's environment", mend, NO_PACKAGE)


def _reason(error: Exception) -> str:
    """Return the first line of the driver's own words."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0].rstrip(":") if text else type(error).__name__


def _listed(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _main(url: str, key: str, rows: str = "0") -> None:
    import json

    try:
        try:
            import sqlalchemy
        except ImportError:
            raise _no_package("sqlalchemy", parse(url)) from None
        table = Table(sqlalchemy, url)
        try:
            answer = table.cut(key, int(rows))
        finally:
            table.close()
    except BadTable as error:
        answer = {"error": error.message, "mend": error.mend, "anchor": error.anchor}
    print(json.dumps(answer))


if __name__ == "__main__":
    import sys

    sys.path.pop(0)  # our own folder, whose modules are not to be found by their short names
    _main(*sys.argv[1:])
