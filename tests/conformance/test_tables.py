"""Tables of databases in jobs: each row once though readers die; secrets that stay secret; tables that cannot be read."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance.engines import Engine, python, workers
from conformance.test_secrets import files_with
from postgres import Database

pytestmark = pytest.mark.needs("only-engine")

READ_AND_DIE = python("""
    import os, signal
    from trainmaster import runtime
    me = runtime.task()
    for number, row in enumerate(runtime.shards("train", batch=1), 1):
        print("row", row["id"], row["label"], flush=True)
        if me.attempt == 1 and number == 700:
            runtime.barrier("both read")
            if me.index == 0:
                os.kill(os.getpid(), signal.SIGKILL)
""")
READ = python("""
    from trainmaster import runtime
    print(sum(1 for row in runtime.shards("train")), "rows")
""")


def sqlite(path: Path, rows: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE digits (id INTEGER PRIMARY KEY, label, unused)")
        connection.executemany("INSERT INTO digits VALUES (?, ?, 0)", [(7 * row, row % 10) for row in range(rows)])
    connection.close()


def job_file(engine: Engine, url: str, command: list[str] = READ, **keys: Any) -> str:
    """A job file of a worker that reads a table."""
    job = {"name": "t", "roles": workers(command), "inputs": {"train": {"url": url, "as": "shards", **keys}}}
    engine.write("job.yaml", yaml.safe_dump(job))
    return "job.yaml"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_row_is_counted_once_though_a_reader_dies_and_no_password_is_written(
    engine: Engine, kind: str, postgres: Database, home: Any
) -> None:
    if kind == "sqlite":
        sqlite(engine.folder / "a.db", 4000)
        url, keys = "sqlite:///a.db?table=digits&columns=id,label", {}
    else:
        postgres.run(
            "CREATE TABLE digits (id int PRIMARY KEY, label int, unused int)",
            "INSERT INTO digits SELECT 7 * n, n % 10, 0 FROM generate_series(0, 3999) n",
        )
        engine.write("password", f"{postgres.password}\n")
        url, keys = f"{postgres.url}?table=digits&columns=id,label", {"secrets": {"PGPASSWORD": {"file": "password"}}}
    source = {"url": url, "as": "shards", "epochs": 2, "shuffle": True}
    job = engine.submit(workers(READ_AND_DIE, 2), inputs={"train": source}, **keys)
    status = job.succeeded()
    attempts = [("worker:0", 1), ("worker:1", 1), ("worker:0", 2)]
    read = [line.removeprefix("row ") for task, attempt in attempts for line in job.lines(task, attempt)]
    assert set(read) == {f"{7 * row} {row % 10}" for row in range(4000)}
    assert len(read) >= 8000, "each was used at least once an epoch"
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    assert "32 of 32 shards counted exactly once, 8,000 records" in audited.stdout
    assert "epoch 1: 4,000 records" in audited.stdout
    assert status["shards"]["train"]["done"] == status["shards"]["train"]["total"] == 32
    assert not files_with(postgres.password, home.state, home.runtime)
    assert postgres.password not in str(job.events()) + str(status)


def test_rows_that_come_and_go_between_two_epochs_are_a_fault_in_the_audit(engine: Engine) -> None:
    """The second epoch finds a row less in one shard and a row more in another. A key beyond the last one is in none."""
    sqlite(engine.folder / "a.db", 1000)
    change = python("""
        import sqlite3
        from trainmaster import runtime
        for epoch, rows in runtime.shards("train", batch=1).epochs():
            print(epoch, sum(1 for row in rows), flush=True)
            if epoch == 0:
                with sqlite3.connect("a.db") as connection:
                    connection.execute("DELETE FROM digits WHERE id = 0")
                    connection.execute("INSERT INTO digits VALUES (6992, 1, 0), (7000, 1, 0)")
                connection.close()
    """)
    done = engine.tm("run", job_file(engine, "sqlite:///a.db?table=digits", change, key="id", epochs=2))
    assert done.returncode == 0, done.stderr
    assert "0 1000" in done.stdout
    assert "1 1000" in done.stdout
    job = next(line.split()[0] for line in done.stderr.splitlines() if " succeeded after " in line)
    audited = engine.tm("audit", job)
    assert audited.returncode == 1, audited.stdout
    assert "8 of 8 shards counted exactly once, 2,000 records" in audited.stdout
    for words in (
        "keys 0 to 1,791) had 256 records at first and 255 now: the table was changed",
        "keys 5,376 to 6,993) had 232 records at first and 233 now: the table was changed",
    ):
        assert words in audited.stdout


def test_a_table_that_cannot_be_cut_ends_the_job_and_is_named_with_its_column(engine: Engine) -> None:
    """The other reasons are in unit/test_tables.py."""
    sqlite(engine.folder / "a.db", 30)
    done = engine.tm("run", job_file(engine, "sqlite:///a.db?table=digits", key="label"))
    assert done.returncode == 1
    words = " ".join(done.stderr.split())
    assert "its input train cannot be read: the column label of the table digits of sqlite:////" in words, done.stderr
    assert "is not unique: 20 of 30 rows repeat a key" in words
    assert "name another column by key:" in words


def test_a_password_in_a_url_is_refused_and_not_shown(engine: Engine) -> None:
    name = job_file(engine, "postgresql://me:s3cr3t-Value-8f2c@h/db?table=t")
    shown, done = engine.tm("explain", name), engine.tm("run", name)
    assert done.returncode == 2
    assert "secrets: {PGPASSWORD: }" in done.stderr
    assert "s3cr3t-Value-8f2c" not in shown.stdout + shown.stderr + done.stdout + done.stderr
