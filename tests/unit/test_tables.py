"""Tables of SQL databases as shards: SQLite's and those of a real PostgreSQL. Jobs that read them are in conformance/test_tables.py."""

from __future__ import annotations

import datetime
import json
import os
import socket
import sqlite3
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres import Database

from trainmaster.core.errors import BadInput
from trainmaster.core.input.shards import TABLE, File, Options, ShardTable, place_words
from trainmaster.core.spec.job import Input
from trainmaster.data.formats import tables
from trainmaster.runtime import shards
from trainmaster.runtime.formats import sql
from trainmaster.runtime.reading import Reader

KEYS = st.sets(st.integers(-(2**63), 2**63 - 2), max_size=40)


def sqlite(path: Path, *statements: str, rows: Sequence[Sequence[Any]] = ()) -> str:
    """Make a table `t` in a database, by default of an id and a label; return its URL."""
    connection = sqlite3.connect(path)
    for statement in statements or ("CREATE TABLE t (id INTEGER PRIMARY KEY, label)",):
        connection.execute(statement)
    if rows:
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.commit()
    connection.close()
    return f"sqlite:///{path}?table=t"


def cut(url: str, key: str = "", **environ: str) -> File:
    """The table, cut as a master does that."""
    return tables.cut(Input("train", url, as_="shards", key=key), {**os.environ, **environ}, 60.0)


def cut_here(url: str, rows: int, key: str = "") -> File:
    """The table, cut in this process into shards of `rows` rows."""
    table = sql.Table(sqlalchemy, url)
    answer = json.loads(json.dumps(table.cut(key, rows)))
    table.close()
    return File(answer["path"], answer["end"], kind=TABLE, cuts=tuple(answer["cuts"]))


def read(file: File, options: Options | None = None) -> list[list[dict[str, Any]]]:
    """The records of each shard, as a program reads them, of a table of shards that went through the log."""
    listing = json.loads(json.dumps(ShardTable.make([file], options or Options(), name="train").listing()))
    table = ShardTable.from_listing(listing)
    reader = Reader("utf-8", "strict")
    try:
        return [list(reader.records(*table.shard(number)[1:])) for number in range(table.total)]
    finally:
        reader.close()


@settings(max_examples=30)
@given(KEYS, st.integers(1, 12))
def test_each_row_is_in_one_shard_whatever_the_keys(
    tmp_path_factory: pytest.TempPathFactory, keys: set[int], rows: int
) -> None:
    path = tmp_path_factory.mktemp("db") / "a.db"
    definitions = "CREATE TABLE t (id INTEGER PRIMARY KEY, label)", "CREATE VIEW v AS SELECT * FROM t"
    url = sqlite(path, *definitions, rows=[(key, str(key)) for key in keys])
    file = cut_here(url, rows)
    assert cut_here(url.replace("table=t", "table=v"), rows, "id").cuts == file.cuts, "without an index"
    parts = read(file)
    assert [row["id"] for part in parts for row in part] == sorted(keys)
    assert [len(part) for part in parts[:-1]] == [rows] * len(parts[:-1])
    assert all(parts)


def test_each_row_of_postgresql_is_in_one_shard(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres.run(
        'CREATE SCHEMA "My data"', 'CREATE TABLE "My data"."Digits" ("Key" bigint PRIMARY KEY, "a,b" text)',
        'INSERT INTO "My data"."Digits" SELECT n * n * n - 4000000000000000000, n::text FROM generate_series(1, 3000::bigint) n',
    )  # fmt: skip
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    file = cut(f"{postgres.url}?table=My%20data.Digits")
    assert len(file.cuts) == 12
    parts = read(file)
    assert [row["Key"] for part in parts for row in part] == [n**3 - 4 * 10**18 for n in range(1, 3001)]
    assert {len(part) for part in parts} == {256, 3000 % 256}
    assert parts[0][0] == {"Key": 1 - 4 * 10**18, "a,b": "1"}
    shuffled = read(file, Options(epochs=2, shuffle=True, seed=3))
    assert sorted(map(str, shuffled)) == sorted(map(str, parts * 2))
    assert shuffled[:12] != parts


def test_a_view_columns_and_a_small_integer_as_the_key(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres.run(
        "CREATE TABLE t (id smallint UNIQUE NOT NULL, label int, x text)",
        "INSERT INTO t SELECT n, n % 10, 'x' FROM generate_series(1, 1000) n",
        "CREATE VIEW even AS SELECT * FROM t WHERE label % 2 = 0",
    )
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    parts = read(cut_here(f"{postgres.url}?table=even&columns=label,id", 256, "id"))
    assert [row for part in parts for row in part][:2] == [{"label": 2, "id": 2}, {"label": 4, "id": 4}]
    assert [len(part) for part in parts] == [256, 244]
    assert [len(part) for part in read(cut_here(f"{postgres.url}?table=t", 500, "id"))] == [500, 500]


def test_values_are_those_of_the_driver(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, f float8, b bytea, at timestamptz, yes bool, j json, a int[], none text)",
        """INSERT INTO t VALUES (1, 1.50, 0.5, '\\x00ff', '2026-01-02 03:04:05+00', true, '{"a": [1]}', '{1,2}', NULL)""",
    )
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    row = {"id": 1, "n": Decimal("1.50"), "f": 0.5, "b": b"\0\xff", "at": at, "yes": True, "j": {"a": [1]}, "a": [1, 2]}
    assert read(cut_here(f"{postgres.url}?table=t", 10)) == [[{**row, "none": None}]]
    url = sqlite(
        tmp_path / "a.db",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, f, b, s, none)",
        rows=[(1, 0.5, b"\0\xff", "ä", None)],
    )
    assert read(cut_here(url, 10)) == [[{"id": 1, "f": 0.5, "b": b"\0\xff", "s": "ä", "none": None}]]


def test_rows_that_come_and_go_between_listing_and_reading(tmp_path: Path) -> None:
    """A shard has the rows that are there when it is read; keys beyond those that were listed are in none."""
    url = sqlite(tmp_path / "a.db", rows=[(key * 10, "old") for key in range(1000)])
    file = cut_here(url, 50)
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("DELETE FROM t WHERE id BETWEEN 100 AND 199")
        connection.executemany(
            "INSERT INTO t VALUES (?, ?)", [(-1, "new"), (105, "new"), (9991, "new"), (20000, "new")]
        )
    connection.close()
    rows = [row for part in read(file) for row in part]
    assert [row["id"] for row in rows] == sorted({key * 10 for key in range(1000) if not 10 <= key < 20} | {105})


def test_alone_the_whole_table_is_read(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sqlite(tmp_path / "a.db", rows=[(key, "x") for key in range(700)])
    source = shards("train", default="sqlite:///a.db?table=t&columns=id", epochs=2)
    assert [row["id"] for row in source] == [*range(700)] * 2
    assert [len(batch) for batch in shards("train", default="sqlite:///a.db?table=t").batches(300)] == [300, 300, 100]
    postgres.run("CREATE TABLE t (id int, x text)", "INSERT INTO t SELECT n, 'x' FROM generate_series(1, 2000) n")
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    assert sum(row["id"] for row in shards("train", default=f"{postgres.url}?table=t")) == 2001000


def test_an_empty_table_has_no_shards(tmp_path: Path) -> None:
    assert read(cut_here(sqlite(tmp_path / "a.db"), 10)) == []


@pytest.mark.parametrize(
    ("table", "key", "rows", "words"),
    [
        ("id INTEGER PRIMARY KEY, x", "y", [(1, 2)], "has no column y: it has id, x"),
        ("id INTEGER, x", "", [(1, 2)], "has no primary key of one column, by which to cut it: .*key: COLUMN"),
        ("id INTEGER, x, PRIMARY KEY (id, x)", "", [(1, 2)], "has no primary key of one column"),
        ("id INTEGER, x", "id", [(1, 2), (1, 3), (2, 4)], "column id of the table t .*is not unique: 1 of 3 rows"),
        ("id INTEGER UNIQUE, x", "id", [(1, 2), (None, 3)], "column id of the table t .* is null in 1 of 2 rows"),
        ("id INT PRIMARY KEY, x", "", [(1, 2), (None, 3)], "column id of the table t .* is null in 1 of 2 rows"),
        (
            "id TEXT PRIMARY KEY, x",
            "",
            [("a", 2)],
            "column id of the table t .* has 1 values that are not whole numbers",
        ),
        (
            "id REAL UNIQUE NOT NULL, x",
            "id",
            [(1.5, 2)],
            "has 1 values that are not whole numbers: name another column",
        ),
    ],
)
def test_keys_that_cannot_be_ranges_are_refused(
    tmp_path: Path, table: str, key: str, rows: list[Any], words: str
) -> None:
    url = sqlite(tmp_path / "a.db", f"CREATE TABLE t ({table})", rows=rows)
    with pytest.raises(sql.BadTable, match=words):
        cut_here(url, 10, key)


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        (
            "CREATE TABLE t (id text PRIMARY KEY)",
            "",
            "column id of the table t of .* is TEXT, and ranges need whole numbers",
        ),
        ("CREATE TABLE t (id int)", "id", "column id of the table t of .* is null in 1 of 3 rows"),
        (
            "CREATE TABLE t (id int UNIQUE NULLS DISTINCT)",
            "id",
            "column id of the table t of .* is null in 1 of 3 rows",
        ),
        ("CREATE TABLE u (id int)", "", "the table t of .* does not exist.*there are u"),
    ],
)
def test_keys_of_postgresql_that_cannot_be_ranges_are_refused(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, table: str, key: str, words: str
) -> None:
    values = "(1), (2), (3)" if "PRIMARY" in table else "(1), (2), (NULL)"
    postgres.run(table, f"INSERT INTO {table.split()[2]} VALUES {values}")
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    with pytest.raises(sql.BadTable, match=words):
        cut_here(f"{postgres.url}?table=t", 10, key)


def test_a_database_that_does_not_answer_is_named_with_the_reason(postgres: Database) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(BadInput, match=rf"me@127\.0\.0\.1:{port}/db cannot be reached: .*refused"):
            cut(f"postgresql://me@127.0.0.1:{port}/db?table=t")
    with pytest.raises(BadInput, match=r"cannot be reached: .*password authentication failed") as error:
        cut(f"{postgres.url}?table=t", PGPASSWORD="wrong-password-1234")
    assert error.value.place == "inputs.train.url"
    assert "PGPASSFILE has the password" in error.value.mend
    assert "wrong-password" not in str(error.value)
    with pytest.raises(sql.BadTable, match=r"no\.db does not exist"):
        list(shards("train", default="sqlite:////no.db?table=t"))


def test_a_passfile_has_the_password(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (7)")
    file = tmp_path / "passwords"
    file.write_text(f"127.0.0.1:*:*:reader:{postgres.password}\n")
    file.chmod(0o600)
    assert cut(f"{postgres.url}?table=t", PGPASSFILE=str(file)).cuts == (7,)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://me:pass-word-1@h/db?table=t", "holds a password"),
        ("postgresql://me:pass/word-1@h/db?table=t", "holds a password"),
        ("postgresql://me:pass?word-1@h/db?table=t", "holds a password"),
        ("postgresql+psycopg://h/db?table=t&user=me&password=pass-word-1", "holds a password"),
        ("postgresql://h/db?table=t&sslpassword=pass-word-1", "holds a password"),
        ("postgresql://me@h/db", r"names no table\n.*\n.*append \?table=NAME"),
        ("sqlite://?table=t", "names no file"),
        ("sqlite:///:memory:?table=t", "names no file"),
        ("sqlite:////no/such.db?table=t", r"the file /no/such\.db does not exist"),
    ],
)
def test_urls_that_cannot_be_tables_are_refused_at_submit_and_show_no_password(url: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as error:
        tables.check(Input("train", url, as_="shards"), True)
    assert "word-1" not in str(error.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"as_": "download"}, "say as: shards"),
        ({"format": "csv"}, "a table has no format"),
        ({"url": "data/*.csv", "key": "id"}, "only a table is cut by a key"),
    ],
)
def test_keys_of_the_job_that_do_not_fit_a_table_are_refused(keys: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        tables.check(Input(**{"name": "train", "url": "postgresql://h/db?table=t", "as_": "shards", **keys}), True)


def test_a_relative_path_of_sqlite_is_made_absolute() -> None:
    assert tables.absolute("sqlite:///a/../b.db?table=t", "/home/me") == "sqlite:////home/me/b.db?table=t"
    for url in ("sqlite:////b.db?table=t", "sqlite://?table=t", "postgresql://h/db?table=t"):
        assert tables.absolute(url, "/home/me") == url


def test_a_url_survives_its_parts() -> None:
    url = "postgresql+psycopg://me@h:1/db?sslmode=require&table=My%20data.t&columns=a%20b,c&key=k"
    place = sql.parse(url)
    assert place.url == url
    assert place == sql.Place("postgresql+psycopg://me@h:1/db?sslmode=require", "My data.t", ("a b", "c"), "k")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://me@h:port/db?table=t", "the URL of the table t of .* cannot be used: invalid literal"),
        ("postgresql+no_such://me@h/db?table=t", "the URL of the table t of .* cannot be used: Can't load plugin"),
        ("sqlite:///text.db?table=t", "the table t of .* cannot be read: file is not a database"),
    ],
)
def test_what_is_no_database_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.db").write_text("text, " * 100)
    with pytest.raises(sql.BadTable, match=words):
        sql.Table(sqlalchemy, url).cut()


def test_a_missing_driver_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"needs pg8000 in the program's environment\n.*\n.*pip install pg8000"):
        cut("postgresql+pg8000://h/db?table=t")


def test_a_shard_is_named_by_its_keys() -> None:
    shard = {"path": "sqlite:////a.db?table=t&key=id", "kind": "table", "start": 1000, "end": 2000}
    assert place_words(shard) == "sqlite:////a.db?table=t&key=id, keys 1,000 to 1,999"


def test_a_job_says_how_many_rows_a_shard_has(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "x.db", rows=[(number, "a") for number in range(1, 100)])
    file = tables.cut(Input("train", url, as_="shards", shard_records=20), os.environ, 60.0)
    assert file.cuts == (1, 21, 41, 61, 81)
