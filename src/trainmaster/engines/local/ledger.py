"""The ledger records what all jobs of a user hold and ask of this machine, in SQLite; their masters share it.

A job that a container's program starts shares what that container has: capacity is then that of the container's control group, and what is
held is counted in a ledger of the container's own. In the machine's ledger it would wait for what its own container holds, for ever.

There is no daemon. A process that changes something takes the write lock for a *turn*: it strikes out dead holders and the asks of dead
masters, computes `grant` for the whole line, and enters the grants of every job, not only its own; then it wakes the other masters. A hold
belongs to a process: the job's master until the container runs, its agent from then on. When that process is dead the hold is free.

The file is in this boot's folder, so that another boot's ledger is never read; for the same reason it is not synced to disk. It keeps
SQLite's rollback journal. Changing it to a write-ahead log would take ten times as long as opening the file. If two processes open the file
at the same moment, that change fails at once for one of them, however long it could wait. A job's row has its place in line, which it keeps
through a change of masters, and the epoch below which no master may write.

The file appears whole, so one without tables is damaged, like one that SQLite calls so. Then nobody knows what is held: nothing
is granted, and all that waits says why. It is made anew once no agent lives, for then nobody holds anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from trainmaster.core.containers import Request
from trainmaster.core.errors import EngineFailed
from trainmaster.core.plain import Plain
from trainmaster.engines.local.queue import Ask, Hold, grant, reclaim
from trainmaster.host import places
from trainmaster.host.machine import Capacity
from trainmaster.host.processes import AGENT, Process, enclosing_agent, living
from trainmaster.log.documents.files import damaged
from trainmaster.log.storage import Damaged, draft_of

FILE = "ledger.sqlite"
_VERSION = 2
_BUSY = 10.0  # s to wait for another's turn, each of which takes a millisecond
_TABLES = """
CREATE TABLE jobs (place INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT UNIQUE, epoch INTEGER, pid INTEGER, start INTEGER);
CREATE TABLE asks (number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, task TEXT, serial INTEGER, request TEXT, UNIQUE (job, task, serial));
CREATE TABLE holds (job TEXT, task TEXT, serial INTEGER, request TEXT, devices TEXT, pid INTEGER, start INTEGER, running INTEGER,
                    yields_to TEXT, PRIMARY KEY (job, task, serial));
"""
_DAMAGED = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)  # the first: our statements do not fit the tables


@attrs.frozen(slots=True, eq=False, repr=False)
class Entry(Plain):
    """A hold in the ledger: the process that it belongs to, and whether its container was started."""

    hold: Hold
    process: Process
    running: bool

    @property
    def key(self) -> tuple[str, int]:
        return self.hold.request.task, self.hold.request.serial


class Ledger:
    """One process's connection to the ledger. It must not be used after a fork. All that uses a damaged one raises Damaged."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or _path()
        self._wait = _BUSY
        self._connection: sqlite3.Connection | None = None
        with contextlib.suppress(Damaged):  # it is opened again where it is used
            self._open()

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            with contextlib.suppress(FileExistsError), _made(self._path) as draft:
                os.link(draft, self._path)
        connection = self._connection = sqlite3.connect(self._path, timeout=self._wait, isolation_level=None)
        self._execute("PRAGMA synchronous = OFF")
        with self.turn():
            version = self._execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                raise self._damage(b"")
            if version != _VERSION and not self._is_in_use():
                for table in ("jobs", "asks", "holds"):
                    self._execute(f"DROP TABLE {table}")
                version = _make_tables(connection)
        if version != _VERSION:
            self.close()
            raise EngineFailed(
                f"the jobs of this machine are kept by another version of trainmaster (ledger {version}, ours is {_VERSION})",
                place=str(self._path),
                mend="let those jobs end, or set TRAINMASTER_RUNTIME_DIR to another directory",
                anchor="ledger-version",
            )
        return connection

    def _execute(self, *statement: Any) -> sqlite3.Cursor:
        connection = self._connection or self._open()
        try:
            return connection.execute(*statement)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                raise
            raise self._damage(self._path.read_bytes() if self._path.exists() else b"") from error

    def _damage(self, content: bytes) -> Damaged:
        """Return the error about a damaged ledger. Where no agent lives, the next use finds one that was made anew."""
        self.close()
        if not _agents():
            _make_anew(self._path)
        return damaged(
            str(self._path), content, "let the jobs of this machine end, or end them with tm kill: it is made anew then"
        )

    def _is_in_use(self) -> bool:
        """Tell whether a process lives in this ledger, of whatever version: each has kept processes as pid and start."""
        rows = self._execute("SELECT pid, start FROM jobs UNION SELECT pid, start FROM holds")
        return any(Process(pid, start).alive for pid, start in rows)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def wait_at_most(self, seconds: float) -> None:
        """Wait at most so long for another's turn from now on: a caller whose loop stands still meanwhile waits less."""
        self._wait = seconds
        if self._connection is not None:
            self._connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the write lock; all changes inside are made, or none of them."""
        self._execute("BEGIN IMMEDIATE")
        connection = self._connection
        try:
            yield
            self._execute("COMMIT")
        except BaseException:  # a commit fails too: a reader is slow, or the disk is full
            if connection is not None and connection is self._connection and connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    # -- a master's changes --

    def enter(self, job: str, epoch: int, master: Process) -> None:
        """Take part as the job's master of this epoch. Raises EngineFailed where a later one has."""
        with self.turn():
            self._fence(job, epoch)
            self._execute(
                "INSERT INTO jobs (job, epoch, pid, start) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (job) DO UPDATE SET epoch = excluded.epoch, pid = excluded.pid, start = excluded.start",
                (job, epoch, master.pid, master.start),
            )

    def ask(self, job: str, epoch: int, requests: Sequence[Request]) -> None:
        """State the whole set of the job's asks. An ask already in line keeps its place; one that is granted already is left out."""
        with self.turn():
            self._fence(job, epoch)
            self._strike_dead()  # a container that a dead master was granted and had not started is asked for anew
            keys = {(request.task, request.serial) for request in requests}
            for task, serial in self._execute("SELECT task, serial FROM asks WHERE job = ?", (job,)).fetchall():
                if (task, serial) not in keys:
                    self._execute("DELETE FROM asks WHERE job = ? AND task = ? AND serial = ?", (job, task, serial))
            for request in requests:
                self._execute(
                    "INSERT INTO asks (job, task, serial, request) SELECT :job, :task, :serial, :request"
                    " WHERE NOT EXISTS (SELECT 1 FROM holds WHERE job = :job AND task = :task AND serial = :serial)"
                    " ON CONFLICT (job, task, serial) DO UPDATE SET request = excluded.request",
                    {"job": job, "task": request.task, "serial": request.serial, "request": _to_json(request)},
                )

    def run(self, job: str, task: str, serial: int, agent: Process) -> None:
        """Note that the container runs: its hold belongs to the agent from now on."""
        with self.turn():
            self._execute(
                "UPDATE holds SET pid = ?, start = ?, running = 1 WHERE job = ? AND task = ? AND serial = ?",
                (agent.pid, agent.start, job, task, serial),
            )

    def free(self, job: str, task: str, serial: int) -> None:
        """Strike out a hold or an ask."""
        with self.turn():
            for table in ("holds", "asks"):
                self._execute(f"DELETE FROM {table} WHERE job = ? AND task = ? AND serial = ?", (job, task, serial))

    def forget(self, job: str) -> None:
        """Strike out all of a job."""
        with self.turn():
            for table in ("holds", "asks", "jobs"):
                self._execute(f"DELETE FROM {table} WHERE job = ?", (job,))

    def _fence(self, job: str, epoch: int) -> None:
        row = self._execute("SELECT epoch FROM jobs WHERE job = ?", (job,)).fetchone()
        if row is not None and row[0] > epoch:
            raise EngineFailed(
                f"job {job} has a master of epoch {row[0]}; this one, of epoch {epoch}, must stop", anchor="epoch"
            )

    # -- a turn of the line --

    def serve(self, capacity: Capacity) -> set[str]:
        """Free the holds of dead processes, grant what can be granted, and take back what is to give way; return the jobs concerned."""
        with self.turn():
            self._strike_dead()
            granted = grant(capacity, self.holds(), self.asks())
            masters = self.masters()
            for hold in granted:
                request, master = hold.request, masters[hold.job]
                key = hold.job, request.task, request.serial
                self._execute("DELETE FROM asks WHERE job = ? AND task = ? AND serial = ?", key)
                self._execute(
                    "INSERT INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, 0, '')",
                    (*key, _to_json(request), json.dumps(hold.devices), master.pid, master.start),
                )
            reclaimed = reclaim(capacity, self.holds(), self.asks())
            for hold, taker in reclaimed:
                self._execute(
                    "UPDATE holds SET yields_to = ? WHERE job = ? AND task = ? AND serial = ?",
                    (taker, hold.job, hold.request.task, hold.request.serial),
                )
        return {hold.job for hold in granted} | {hold.job for hold, _ in reclaimed}

    def _strike_dead(self) -> None:
        for entry in self.entries():
            if not entry.process.alive:
                self._execute(
                    "DELETE FROM holds WHERE job = ? AND task = ? AND serial = ?", (entry.hold.job, *entry.key)
                )
        for job, master in self.masters().items():
            if not master.alive:
                self._execute("DELETE FROM asks WHERE job = ?", (job,))

    # -- reading --

    def holds(self) -> list[Hold]:
        return [entry.hold for entry in self.entries()]

    def entries(self, job: str | None = None) -> list[Entry]:
        """Return all holds, or one job's."""
        rows = self._execute("SELECT job, request, devices, pid, start, running, yields_to FROM holds ORDER BY rowid")
        return [
            Entry(
                Hold(owner, _from_json(request), tuple(json.loads(devices)), yields_to),
                Process(pid, start),
                bool(running),
            )
            for owner, request, devices, pid, start, running, yields_to in rows
            if job is None or owner == job
        ]

    def held_by_others(self, job: str) -> int:
        """Return how many containers the other jobs hold, with those of dead processes that nobody has struck out yet."""
        return int(self._execute("SELECT COUNT(*) FROM holds WHERE job != ?", (job,)).fetchone()[0])

    def asks(self) -> list[Ask]:
        rows = self._execute("SELECT job, request, place, number FROM asks JOIN jobs USING (job) ORDER BY number")
        return [Ask(job, _from_json(request), place, number) for job, request, place, number in rows]

    def waiters(self) -> set[str]:
        """Return the jobs that have asks in line."""
        return {job for (job,) in self._execute("SELECT DISTINCT job FROM asks")}

    def masters(self) -> dict[str, Process]:
        return {job: Process(pid, start) for job, pid, start in self._execute("SELECT job, pid, start FROM jobs")}


def _path() -> Path:
    """Return where jobs that this process starts are recorded: with the machine's, or inside a container with that container's."""
    if (enclosing := enclosing_agent()) is None:
        return places.runtime_dir() / FILE
    job, agent = enclosing
    return places.job_dir(job) / f"{agent.task.replace(':', '-')}.{agent.serial}.{FILE}"


@contextmanager
def _made(path: Path) -> Iterator[str]:
    """Yield the path of a new ledger, not yet under its own name."""
    draft = draft_of(str(path))
    try:
        connection = sqlite3.connect(draft, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")
        _make_tables(connection)
        connection.close()
        yield draft
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _make_tables(connection: sqlite3.Connection) -> int:
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    return _VERSION


def _make_anew(path: Path) -> None:
    """Replace a damaged ledger, unless another process has."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as old:
        fcntl.flock(old, fcntl.LOCK_EX)
        if os.fstat(old.fileno()).st_ino == path.stat().st_ino:
            path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
            with _made(path) as draft:
                os.rename(draft, path)


def _agents() -> bool:
    """Tell whether an agent lives on this machine, other than that of our own container."""
    enclosing = enclosing_agent()
    own = {enclosing[1].process} if enclosing is not None else set()
    return any(mark.process not in own for job in places.jobs_with_dir() for mark in living(job, AGENT))


def _to_json(request: Request) -> str:
    return json.dumps(attrs.asdict(request))


def _from_json(text: str) -> Request:
    return Request(**json.loads(text))
