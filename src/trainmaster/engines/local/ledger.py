"""The ledger: what all jobs of a user hold and ask of this machine, in SQLite, shared by their masters.

There is no daemon. Whoever changes something takes the write lock for a *turn*: dead holders and dead masters' asks are struck out, `grant`
is worked out for the whole line, and what it gives is entered for every job, not only one's own; the caller then wakes the others. A hold
belongs to a process: the job's master until the container runs, its agent from then on. When that process is dead the hold is free.

The file lies in this boot's folder, so that another boot's ledger is never read, and is not synced to disk for the same reason. It keeps
SQLite's rollback journal: the change to a write-ahead log fails at once for whoever opens the file at the same moment as another, whatever
time it has to wait, and takes ten times as long as opening it does. A job's row gives it its place in line, which it keeps through a change
of masters, and the epoch below which no master may write.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from trainmaster.core.errors import EngineFailed
from trainmaster.core.plain import Plain
from trainmaster.engines.contract import Request
from trainmaster.engines.local.queue import Ask, Hold, grant
from trainmaster.host import places
from trainmaster.host.machine import Capacity
from trainmaster.host.processes import Process

FILE = "ledger.sqlite"
_VERSION = 1
_BUSY = 10.0  # s to wait for another's turn, each of which takes a millisecond
_TABLES = """
CREATE TABLE jobs (place INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT UNIQUE, epoch INTEGER, pid INTEGER, start INTEGER);
CREATE TABLE asks (number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, task TEXT, serial INTEGER, request TEXT, UNIQUE (job, task, serial));
CREATE TABLE holds (job TEXT, task TEXT, serial INTEGER, request TEXT, devices TEXT, pid INTEGER, start INTEGER, running INTEGER,
                    PRIMARY KEY (job, task, serial));
"""


@attrs.frozen(slots=True, eq=False, repr=False)
class Entry(Plain):
    """A hold as the ledger has it: whose it is, and whether its container was started."""

    hold: Hold
    process: Process
    running: bool

    @property
    def key(self) -> tuple[str, int]:
        return self.hold.request.task, self.hold.request.serial


class Ledger:
    """One process's connection. Not to be carried over a fork."""

    def __init__(self, path: Path | None = None) -> None:
        path = path or places.runtime_dir() / FILE
        self._db = sqlite3.connect(path, timeout=_BUSY, isolation_level=None)
        self._db.execute("PRAGMA synchronous = OFF")
        with self.turn():
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_VERSION}")
        if version not in (0, _VERSION):
            self._db.close()
            raise EngineFailed(
                f"the jobs of this machine are kept by another version of trainmaster (ledger {version}, ours is {_VERSION})",
                place=str(path),
                mend="let those jobs end, or set TRAINMASTER_RUNTIME_DIR to another directory",
                anchor="ledger-version",
            )

    def close(self) -> None:
        self._db.close()

    def wait_at_most(self, seconds: float) -> None:
        """For another's turn, from now on: less than at first, where a loop stands still meanwhile."""
        self._db.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the write lock; what is done inside is done as a whole or not at all."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # -- what a master says --

    def enter(self, job: str, epoch: int, master: Process) -> None:
        """Take part as the job's master of this epoch. EngineFailed if a later one has."""
        with self.turn():
            self._fence(job, epoch)
            self._db.execute(
                "INSERT INTO jobs (job, epoch, pid, start) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (job) DO UPDATE SET epoch = excluded.epoch, pid = excluded.pid, start = excluded.start",
                (job, epoch, master.pid, master.start),
            )

    def ask(self, job: str, epoch: int, requests: Sequence[Request]) -> None:
        """State the whole set of the job's asks. One that stands keeps its place; one already held is left out."""
        with self.turn():
            self._fence(job, epoch)
            self._strike_dead()  # what was granted to a master that died before it started it is asked for anew
            wanted = {(one.task, one.serial) for one in requests}
            for task, serial in self._db.execute("SELECT task, serial FROM asks WHERE job = ?", (job,)).fetchall():
                if (task, serial) not in wanted:
                    self._db.execute("DELETE FROM asks WHERE job = ? AND task = ? AND serial = ?", (job, task, serial))
            self._db.executemany(
                "INSERT INTO asks (job, task, serial, request) SELECT :job, :task, :serial, :request"
                " WHERE NOT EXISTS (SELECT 1 FROM holds WHERE job = :job AND task = :task AND serial = :serial)"
                " ON CONFLICT (job, task, serial) DO UPDATE SET request = excluded.request",
                [{"job": job, "task": one.task, "serial": one.serial, "request": _packed(one)} for one in requests],
            )

    def run(self, job: str, task: str, serial: int, agent: Process) -> None:
        """The container runs: its hold is the agent's from now on."""
        with self.turn():
            self._db.execute(
                "UPDATE holds SET pid = ?, start = ?, running = 1 WHERE job = ? AND task = ? AND serial = ?",
                (agent.pid, agent.start, job, task, serial),
            )

    def free(self, job: str, task: str, serial: int) -> None:
        """Strike out a hold or an ask."""
        with self.turn():
            for table in ("holds", "asks"):
                self._db.execute(f"DELETE FROM {table} WHERE job = ? AND task = ? AND serial = ?", (job, task, serial))

    def forget(self, job: str) -> None:
        """Strike out all of a job."""
        with self.turn():
            for table in ("holds", "asks", "jobs"):
                self._db.execute(f"DELETE FROM {table} WHERE job = ?", (job,))

    def _fence(self, job: str, epoch: int) -> None:
        row = self._db.execute("SELECT epoch FROM jobs WHERE job = ?", (job,)).fetchone()
        if row is not None and row[0] > epoch:
            raise EngineFailed(
                f"job {job} has a master of epoch {row[0]}; this one, of epoch {epoch}, must stop", anchor="epoch"
            )

    # -- a turn of the line --

    def serve(self, capacity: Capacity) -> set[str]:
        """Free what is dead and grant what can be granted; returns the jobs that got something."""
        with self.turn():
            self._strike_dead()
            granted = grant(capacity, self.holds(), self.asks())
            masters = self.masters()
            for hold in granted:
                one, master = hold.request, masters[hold.job]
                self._db.execute(
                    "DELETE FROM asks WHERE job = ? AND task = ? AND serial = ?", (hold.job, one.task, one.serial)
                )
                self._db.execute(
                    "INSERT INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                    (hold.job, one.task, one.serial, _packed(one), json.dumps(hold.devices), master.pid, master.start),
                )
        return {hold.job for hold in granted}

    def _strike_dead(self) -> None:
        for entry in self.entries():
            if not entry.process.alive:
                self._db.execute(
                    "DELETE FROM holds WHERE job = ? AND task = ? AND serial = ?", (entry.hold.job, *entry.key)
                )
        for job, master in self.masters().items():
            if not master.alive:
                self._db.execute("DELETE FROM asks WHERE job = ?", (job,))

    # -- reading --

    def holds(self) -> list[Hold]:
        return [entry.hold for entry in self.entries()]

    def entries(self, job: str | None = None) -> list[Entry]:
        """All holds, or one job's."""
        rows = self._db.execute("SELECT job, request, devices, pid, start, running FROM holds ORDER BY rowid")
        return [
            Entry(Hold(of, _unpacked(request), tuple(json.loads(devices))), Process(pid, start), bool(running))
            for of, request, devices, pid, start, running in rows
            if job is None or of == job
        ]

    def held_by_others(self, job: str) -> int:
        """Return how many containers the other jobs hold; those of the dead, which nobody has struck out yet, too."""
        return int(self._db.execute("SELECT COUNT(*) FROM holds WHERE job != ?", (job,)).fetchone()[0])

    def asks(self) -> list[Ask]:
        rows = self._db.execute("SELECT job, request, place, number FROM asks JOIN jobs USING (job) ORDER BY number")
        return [Ask(job, _unpacked(request), place, number) for job, request, place, number in rows]

    def waiters(self) -> set[str]:
        """The jobs that have asks in line."""
        return {job for (job,) in self._db.execute("SELECT DISTINCT job FROM asks")}

    def masters(self) -> dict[str, Process]:
        return {job: Process(pid, start) for job, pid, start in self._db.execute("SELECT job, pid, start FROM jobs")}


def _packed(request: Request) -> str:
    return json.dumps(attrs.asdict(request))


def _unpacked(text: str) -> Request:
    return Request(**json.loads(text))
