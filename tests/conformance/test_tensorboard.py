"""TensorBoard of a job: a task that shows its event files while it runs, and `tm tensorboard` over what it left. It is the real one."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from conformance.engines import TM, Engine, python, role
from serving import serving
from waiting import until, until_async

from trainmaster.client.programs import program_of
from trainmaster.web.proxy import Program, Programs

Ask = Callable[[str], Awaitable[str]]  # a path of the page -> what it answers, "" if it does not
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
WRITE = """
    import os, sys, time, types
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # it loads no TensorFlow, which would take 500 MiB
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    logs = os.path.join({logs!r}, os.environ["TRAINMASTER_INDEX"])
    writer = EventFileWriter(logs)
    value = Summary.Value(tag="loss", simple_value=0.5)
    writer.add_event(Event(step=1, wall_time=time.time(), summary=Summary(value=[value])))
    writer.close()
    while not os.path.exists({go!r}):
        time.sleep(0.05)
"""


def board_job(engine: Engine, logs: str, **keys: Any) -> Any:
    """Two workers that each write one event file, and TensorBoard over them."""
    command = python(WRITE.format(logs=logs, go=str(engine.folder / "go")))
    workers = role(command, 2, resources={"cores": 0.05, "memory": "256MiB"}, **keys)
    environment = {**engine.own().get("environment", {}), "path": sys.prefix}
    board = {"logs": logs, "memory": "1GiB"}
    return engine.submit({"worker": workers}, tensorboard=board, environment=environment)


def runs(address: str) -> list[str]:
    try:
        with urllib.request.urlopen(f"{address}data/runs", timeout=5) as answer:
            return sorted(name.removesuffix("/.") for name in json.load(answer))
    except OSError:
        return []


def link(job: Any) -> str:
    return str(job.status().get("links", {}).get("TensorBoard", ""))


async def browse(job: Any, label: str, act: Callable[[Ask], Awaitable[None]]) -> None:
    """Open a page of the job as a browser does, from the page's own origin; `act` asks for more of it."""

    async def find(name: str, label: str) -> Program | None:
        return await asyncio.to_thread(program_of, name, label)

    programs = Programs(find, asyncio.get_running_loop().time)
    async with serving(programs) as port:
        entry = urlsplit(programs.entry(job.id, label, "127.0.0.1", port))

        def get(path: str, cookie: str = "") -> tuple[int, str, str]:
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            line.request("GET", path, headers={"Host": entry.netloc, "Cookie": cookie})
            answer = line.getresponse()
            content, set_cookie = answer.read().decode(), answer.getheader("Set-Cookie") or ""
            line.close()
            return answer.status, content, set_cookie.partition(";")[0]

        _, _, cookie = await asyncio.to_thread(get, f"{entry.path}?{entry.query}")

        async def ask(path: str) -> str:
            status, content, _ = await asyncio.to_thread(get, path, cookie)
            return content if status == 200 else ""  # 502 until the program listens

        await act(ask)


def test_a_quick_link_reaches_the_program_of_its_task(engine: Engine) -> None:
    """From this machine, wherever the task is: the way there is the engine's."""
    serve = python(f"""
        import http.server, os, threading, time
        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                content = f"worker {{os.environ['TRAINMASTER_INDEX']}} serves {{self.path}}".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
        server = http.server.ThreadingHTTPServer(("", int(os.environ["TRAINMASTER_PORT_WEB"])), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while not os.path.exists({str(engine.folder / "go")!r}):
            time.sleep(0.05)
    """)
    job = engine.submit({"worker": role(serve, 2, ports=["web"])}, links={"Page": "worker:1:web/start"})
    job.until_status("its link is there", lambda status: "Page" in status["links"])

    async def act(ask: Ask) -> None:
        assert await until_async(lambda: ask("/x?y=1"), what=job.said) == "worker 1 serves /x?y=1"

    asyncio.run(browse(job, "Page", act))
    engine.write("go", "")
    job.succeeded()


@pytest.mark.needs("installed")
def test_tensorboard_shows_a_job_while_it_runs_and_afterwards(engine: Engine) -> None:
    """A task of its own that does not count; its page is in the status, and is proxied; the event files are there when the job is over."""
    logs = str(engine.folder / "events")  # the nodes of the clusters of tests are this machine
    job = board_job(engine, logs)
    until(lambda: link(job), 180.0, what=job.said)

    async def act(ask: Ask) -> None:
        async def two_runs() -> list[str]:
            found: list[str] = json.loads(await ask("/data/runs") or "[]")
            return found if len(found) == 2 else []

        found = await until_async(two_runs, 180.0, what=lambda: "\n".join(job.lines("tensorboard:0")))
        assert sorted(name.removesuffix("/.") for name in found) == ["0", "1"]
        assert "<title>TensorBoard</title>" in await ask("/")

    asyncio.run(browse(job, "TensorBoard", act))
    engine.write("go", "")
    status = job.succeeded()
    assert job.task("tensorboard:0")["state"] == "killed"
    assert status["links"] == {}
    assert shown_afterwards(engine, job.id) == [f"{job.id}/0", f"{job.id}/1"]


def shown_afterwards(engine: Engine, *arguments: str) -> list[str]:
    """The runs that `tm tensorboard` shows, until Ctrl-C."""
    command = [TM, "tensorboard", *arguments, "--port", "0"]
    environ = {**os.environ, "PATH": PATH}
    with subprocess.Popen(command, cwd=engine.folder, env=environ, stdout=subprocess.PIPE, text=True) as board:
        try:
            assert board.stdout is not None
            address = board.stdout.readline().strip()
            opened = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)([\w-]{40,}/)", address)
            assert opened, address
            shown = until(lambda: runs(address), 120.0)
            shows_nothing_to_other_users(board.pid, *opened.groups())
            return shown
        finally:
            board.send_signal(signal.SIGINT)
            assert board.wait(60) == 0


def shows_nothing_to_other_users(pid: int, server: str, secret: str) -> None:
    """They see the port in /proc, the commands there, and what TensorBoard tells about itself in /tmp. None of these has the secret, and a
    request without it is refused.
    """
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{server}data/runs", timeout=60)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = [Path(f"/proc/{process}/cmdline").read_bytes() for process in (pid, *children)]
    assert any(b"--flagfile=" in command for command in commands), commands
    told = [path.read_bytes() for path in Path(tempfile.gettempdir(), ".tensorboard-info").glob("*")]
    assert not any(secret.rstrip("/").encode() in content for content in [*commands, *told])


@pytest.mark.full
@pytest.mark.needs("submitters-place")
def test_event_files_in_each_tasks_own_directory_are_shown_and_kept(engine: Engine) -> None:
    job = board_job(engine, "events", workdir="copy")
    address = until(lambda: link(job), what=job.said)
    assert until(lambda: len(found := runs(address)) == 2 and found, 120.0) == ["worker-0/0", "worker-1/1"]
    engine.write("go", "")
    job.succeeded()
    assert shown_afterwards(engine, "--all") == [f"{job.id}/worker-0/0", f"{job.id}/worker-1/1"]


@pytest.mark.needs("submitters-place")
def test_a_job_goes_on_without_tensorboard_where_it_is_not_installed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # that of the tests has theirs
    command = ["sh", "-c", "until [ -e seen ]; do sleep 0.02; done"]
    job = engine.submit({"worker": role(command, env={"A": "b"})}, tensorboard="events", environment={"path": "/usr"})
    failed = job.until_status("it has no TensorBoard", lambda status: status["tasks"][-1]["state"] == "failed")
    assert failed["tasks"][-1]["words"].startswith("a command was not found in: tensorboard --logdir ")
    assert any("tensorboard" in line and "not found" in line for line in job.lines("tensorboard:0"))
    engine.write("seen", "")
    assert job.succeeded()["restarts"] == 0


@pytest.mark.needs("submitters-place")
def test_a_job_without_event_files_has_nothing_to_show(engine: Engine) -> None:
    job = engine.submit({"worker": role("true")})
    job.succeeded()
    told = engine.tm("tensorboard", job.id, env={**os.environ, "PATH": PATH})
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith(f"error: {job.id} has no event files  [no-event-files]\n")
    assert "Traceback" not in told.stderr
