"""The REST interface of a real master: as commands use it, as its own description says, and under requests of all kinds."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Engine, Submitted, workers
from waiting import until

pytestmark = pytest.mark.needs("local-master")

SCHEMATHESIS = str(Path(sys.executable).parent / "schemathesis")
# Valid requests end the job, take a task away from it for up to an hour, or are answered until it ends.
GRAVE = ("/api/v1/jobs/{job}/actions/kill", "/api/v1/jobs/{job}/actions/cut")
FOLLOWED = "/api/v1/jobs/{job}/stream"


@pytest.fixture
def job(engine: Engine) -> Iterator[Submitted]:
    """A job that runs until it is killed, or the test is over."""
    submitted = engine.submit(workers("echo ready; while :; do sleep 0.1; done", 2))
    for task in ("worker:0", "worker:1"):
        submitted.until_line("ready", task)
    submitted.until_status("running tasks", lambda status: all(task["state"] == "running" for task in status["tasks"]))
    yield submitted
    assert ask(submitted, "/api/v1/jobs/{job}/actions/kill", "POST", {"by": "ann"})[0] == 200
    status = submitted.end()
    assert (status["state"], status["epoch"]) == ("killed", 1), "a master died"


def socket_of(job: Submitted) -> str:
    from trainmaster.client.jobs.places import master_socket

    path = master_socket(job.id)
    until(path.exists, what="the master's socket")
    return str(path)


def token(job: Submitted) -> str:
    return (job.storage / "token").read_text().strip()


class Line(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def ask(job: Submitted, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, bytes]:
    with closing(Line(socket_of(job))) as line:
        sent = {"Authorization": f"Bearer {token(job)}", "Content-Type": "application/json", **headers}
        line.request(method, path.format(job=job.id), None if body is None else json.dumps(body), sent)
        answer = line.getresponse()
        return answer.status, answer.read()


def read(job: Submitted, path: str, **headers: str) -> Any:
    status, content = ask(job, path, **headers)
    assert status == 200, content
    return json.loads(content)


@contextmanager
def on_port(path: str) -> Iterator[int]:
    """Hand on what comes at a port of 127.0.0.1 to a Unix socket, for tools that know of ports alone."""
    listening = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hand_on(near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far, suppress(OSError):
            far.connect(path)
            back = threading.Thread(target=copy, args=(far, near))
            back.start()
            copy(near, far)
            back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                lines.append(threading.Thread(target=hand_on, args=(near,)))
                lines[-1].start()

    lines: list[threading.Thread] = []
    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join()
        for line in lines:
            line.join()


def test_a_job_is_read_by_its_master(job: Submitted) -> None:
    (row,) = read(job, "/api/v1/jobs")["jobs"]
    assert (row["id"], row["state"]) == (job.id, "running")
    assert read(job, "/api/v1/jobs/{job}/tasks/worker:1")["state"] == "running"
    page = read(job, "/api/v1/jobs/{job}/events?limit=3")
    assert ([event["n"] for event in page["events"]], page["next"], page["more"]) == ([1, 2, 3], 3, True)
    assert "".join(piece["data"] for piece in read(job, "/api/v1/jobs/{job}/logs/worker:0")["pieces"]) == "ready\n"
    assert ask(job, "/api/v1/jobs/{job}/logs/worker:0", Range="bytes=1-3") == (206, b"ead")
    assert ask(job, "/api/v1/jobs/{job}/logs/worker:0?attempt=2")[0] == 404
    assert ask(job, "/api/v1/jobs/other-aaaaaa")[0] == 404
    figures = ask(job, "/metrics")[1].decode()
    assert f'trainmaster_job_state{{job="{job.id}",state="running"}} 1.0' in figures


def test_answers_are_as_they_are_described(job: Submitted) -> None:
    import jsonschema_rs

    described = read(job, "/api/v1/openapi.json")
    checked = 0
    for path, operations in described["paths"].items():
        if path == FOLLOWED or "get" not in operations:
            continue
        status, content = ask(job, path.replace("{task}", "worker:0"))
        assert status == 200, (path, content)
        if (schema := operations["get"]["responses"]["200"]["content"].get("application/json")) is not None:
            whole = {**schema["schema"], "components": described["components"]}
            jsonschema_rs.validator_for(whole).validate(json.loads(content))
            checked += 1
    assert checked >= 11


def config(job: Submitted, place: Path) -> Path:
    """What Schemathesis has to know: the job, and that a job may refuse an action, or have no bytes in a range."""
    file = place / "schemathesis.toml"
    file.write_text(
        f'parameters = {{ "path.job" = "{job.id}", "path.task" = "worker:0" }}\n'
        "[checks.positive_data_acceptance]\n"
        'expected-statuses = ["2xx", 404, 409, 416]\n'
    )
    return file


@pytest.mark.full
def test_schemathesis_finds_nothing(job: Submitted, tmp_path: Path) -> None:
    """Valid and invalid requests to every endpoint, but those that the job would not survive."""
    with on_port(socket_of(job)) as port:
        command = [
            SCHEMATHESIS, "--config-file", str(config(job, tmp_path)), "run", f"http://127.0.0.1:{port}/api/v1/openapi.json",
            "--header", f"Authorization: Bearer {token(job)}", "--phases", "coverage,fuzzing", "--max-examples", "5",
            "--request-timeout", "30", "--suppress-health-check", "all", "--warnings", "off", "--no-color",
            *(part for path in (*GRAVE, FOLLOWED) for part in ("--exclude-path", path)),
        ]  # fmt: skip
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
