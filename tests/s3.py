"""A real S3 server for tests: versitygw, which serves a directory. `tools/s3server` builds it.

    def test_something(s3: str): ...  # the URL of a bucket of the test's own

The server is started once a session, on a free port, and killed at its end. Programs find it by the variables that Amazon's tools read,
which the fixture sets.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import leftovers
import pytest
import waiting
import watchdog
from kubernetes import Cluster
from parts import not_run

PROGRAM = Path(os.environ.get("TRAINMASTER_S3_SERVER") or Path(__file__).parent.parent / ".cache/bin/versitygw")
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests-secret", "AWS_REGION": "us-east-1"}


@attrs.define
class Server:
    """A server of the buckets in `folder`. It may be stopped and started again, on the same port."""

    folder: Path
    port: int
    host: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        if not PROGRAM.exists():
            not_run(f"{PROGRAM.name} is not there", "get Go (https://go.dev/dl), then: make s3server")
        told = {
            "ROOT_ACCESS_KEY": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            "PATH": os.environ["PATH"],
            leftovers.MARK: watchdog.run_id(),
        }
        command = [PROGRAM, "--quiet", "--port", f"{self.host}:{self.port}", "posix", self.folder / "buckets"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=told, cwd=self.folder, stdout=log, stderr=log)
        waiting.until(self._answers, what=lambda: (self.folder / "log").read_text())

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def bucket(self) -> str:
        """The name of a new bucket."""
        name = f"tests-{uuid.uuid4().hex[:12]}"
        (self.folder / "buckets" / name).mkdir()
        return name

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[Server]:
    """A server of one's own, for tests that stop it, or that want it at another address of this machine."""
    folder = Path(tempfile.mkdtemp(prefix="tests-s3-"))
    (folder / "buckets").mkdir()
    with socket.socket() as free:
        free.bind((host, 0))
        server = Server(folder, free.getsockname()[1], host)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def s3(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a bucket of the test's own; the variables that name server and key are set."""
    lead_to(s3_server, monkeypatch)
    return f"s3://{s3_server.bucket()}"


def lead_to(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that name a server and its key."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": server.endpoint}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def s3_for_pods(kubernetes: Cluster) -> Iterator[Server]:
    """A server that pods of the shared cluster reach."""
    with serving(kubernetes.address) as server:
        yield server
