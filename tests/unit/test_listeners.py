"""Whoever listens is in the table of listeners, and a Unix socket is closed to other users."""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import listening
import pytest
from parts import need_root
from waiting import until

import trainmaster
from trainmaster.agent.link import programs
from trainmaster.client.ui.serving import bound
from trainmaster.engines.spark import wire
from trainmaster.engines.spark.master import tickets
from trainmaster.host import processes
from trainmaster.master.connections import serve
from trainmaster.ps import loop
from trainmaster.ps.wire import connections, messages
from trainmaster.ps.wire.connections import listen_at
from trainmaster.runtime.feed import channel
from trainmaster.runtime.network.door import TRUSTED_WITHIN
from trainmaster.runtime.network.listeners import (
    AGENTS_HERE,
    BELL,
    BRIDGE,
    FEED,
    FEED_HERE,
    MASTER,
    PAGES,
    PAGES_OF_PROGRAMS,
    PARAMETERS,
    PARAMETERS_HERE,
    PROGRAMS,
    READERS_HERE,
    RESERVATIONS,
    SUBMITTER,
    TICKETS,
    Row,
)
from trainmaster.runtime.network.strangers import OF_A_PEER, OF_ALL
from trainmaster.spark import reservation
from trainmaster.web import access

SOURCE = Path(trainmaster.__file__).parent
OPENERS = {"listen", "create_server", "create_unix_server", "start_server", "start_unix_server", "unix_serve", "bind"}
OPENERS |= {"ensure_callback_server_started", "start_callback_server"}  # py4j's; the row is `CALLBACKS`
SERVERS = {"socketserver", "multiprocessing.managers", "xmlrpc.server", "http.server", "wsgiref"}
NONE = {  # calls that open no socket, and modules
    "self._loop.listen", "self._ending.listen", "reports.listen", "listen", "signature.bind", "inspect.signature(function).bind",
    "host.bind", "self.host.bind",
}  # fmt: skip
HELD = {  # where a port is bound, and nobody accepts there
    "client/tensorboard.py", "engines/kubernetes/container/bootstrap.py", "host/ports.py", "spark/nodes/TFSparkNode.py",
    "spark/nodes/context.py",
}  # fmt: skip
THEIRS = {
    "engines/spark/bridge/bridge.py",
    "spark/nodes/TFManager.py",
}  # servers of the standard library; the rows are `BRIDGE`, `QUEUES`


def test_nothing_but_the_table_opens_a_listener() -> None:
    """`sock=` hands on one that a row has opened."""
    found, servers = set(), set()
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                is_handed_on = any(keyword.arg == "sock" for keyword in node.keywords)
                if called.rpartition(".")[2] in OPENERS and called not in NONE and not is_handed_on:
                    found.add(name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                modules = {node.module} if isinstance(node, ast.ImportFrom) else {alias.name for alias in node.names}
                servers |= {name} if modules & SERVERS else set()
    assert found - HELD == {"runtime/network/listeners.py", "engines/spark/bridge/listener.py"}
    assert servers == THEIRS


@pytest.mark.parametrize(
    ("row", "kind"),
    [(READERS_HERE, socket.SOCK_STREAM), (BELL, socket.SOCK_DGRAM), (FEED_HERE, socket.SOCK_SEQPACKET)],
)
def test_a_unix_socket_has_its_name_once_it_accepts_and_is_closed_to_others(
    tmp_path: Path, row: Row, kind: int
) -> None:
    path, rename, seen = tmp_path / "x.sock", os.rename, []

    def naming(draft: str, place: str) -> None:
        seen.append((path.exists(), stat.S_IMODE(os.stat(draft).st_mode)))
        if kind != socket.SOCK_DGRAM:
            with socket.socket(socket.AF_UNIX, kind) as client:
                client.connect(draft)
        rename(draft, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", naming)
        for _ in range(2):  # the second takes the place of the first
            with row.at_path(str(path)) as opened:
                assert opened.type == kind
    assert seen == [(False, 0o600), (True, 0o600)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["x.sock"]


def test_a_socket_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.sock").mkdir()
    with pytest.raises(IsADirectoryError):
        READERS_HERE.at_path(str(tmp_path / "x.sock"))
    assert os.listdir(tmp_path) == ["x.sock"]


def test_the_limits_in_the_table_are_those_of_the_code() -> None:
    strangers = f"{OF_A_PEER} connections of a host, {OF_ALL} of all"
    servers = f"{loop.OF_A_PEER} connections of a host, {loop.OF_ALL} of all"
    server = f"headers of {messages.STRANGER_LIMIT >> 10} KiB, then of {messages.HEADER_LIMIT >> 20} MiB"
    for row, words in {
        AGENTS_HERE: f"frames of {serve.FRAME >> 10} KiB",
        MASTER: f"{strangers}, {TRUSTED_WITHIN:g} s each; frames and bodies of {serve.FRAME >> 10} KiB",
        FEED: f"{strangers}, {TRUSTED_WITHIN:g} s each",
        TICKETS: f"{strangers}, {tickets.WITHIN:g} s each",
        RESERVATIONS: f"{strangers}, {reservation.PATIENCE:g} s each; requests of {reservation.LARGEST[b'request'] >> 20} MiB",
        PROGRAMS: f"{programs.GREETING_LIMIT >> 10} KiB before the greeting, then frames of {programs.LINE_LIMIT >> 10} KiB",
        FEED_HERE: f"messages of {channel.MESSAGE_LIMIT >> 10} KiB",
        PARAMETERS: f"{servers}, {connections._REACHED_WITHIN:g} s each; {server}; payloads of {messages.PAYLOAD_LIMIT >> 30} GiB",
        BRIDGE: f"lines of {wire.LIMIT >> 20} MiB",
        SUBMITTER: f"one line of {wire.LIMIT >> 20} MiB",
        PAGES: f"forms of {access._FORM_LIMIT >> 10} KiB",
    }.items():
        assert words in row.limits, row


@pytest.mark.parametrize("listener", [MASTER.at_address, lambda: bound(PAGES, 0, 0)])
def test_a_connection_waits_for_no_acknowledgement_before_it_sends(listener: Callable[[], socket.socket]) -> None:
    """Also where asyncio serves it."""

    async def run() -> int:
        options: asyncio.Queue[int] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served: socket.socket = writer.get_extra_info("socket")
            options.put_nowait(served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        opened = listener()
        async with await asyncio.start_server(serve, sock=opened):
            _, writer = await asyncio.open_connection("127.0.0.1", opened.getsockname()[1])
            option = await options.get()
            writer.close()
            return option

    assert asyncio.run(run()) == 1


def test_a_name_that_a_stranger_has_taken_leaves_a_server_its_port() -> None:
    """Abstract names are anybody's: whoever saw one before a restart may be there first. A server of ours there is an error."""
    need_root()
    name = f"trainmaster-ps-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(f"\0{name}")
        stranger.listen()
        with pytest.raises(OSError, match="in use"):
            listen_at([f"unix:@{name}", "127.0.0.1:0"])
        os.seteuid(65534)
        stranger.listen()  # the kernel notes who does
        os.seteuid(0)
        [listener] = listen_at([f"unix:@{name}", "127.0.0.1:0"])
        with listener:
            assert listener.family == socket.AF_INET
        with pytest.raises(OSError, match="in use"):
            listen_at([f"unix:@{name}"])


OF_A_JOB = {AGENTS_HERE, READERS_HERE, BELL, PROGRAMS, PARAMETERS_HERE, PAGES, PAGES_OF_PROGRAMS}
WORKER = """
import os, time
from trainmaster import runtime
from trainmaster.ps.job import from_job
with from_job(1):
    print("trains", flush=True)
    while not os.path.exists({go!r}):
        time.sleep(0.05)
"""


def test_all_that_a_job_and_its_pages_open_is_in_the_table(home, tmp_path: Path) -> None:
    """Its parameter server's socket is in the job's own directory, where no other user can take its name."""
    go = tmp_path / "go"
    server = [sys.executable, "-m", "trainmaster.ps", "--servers", "1"]
    roles = {
        "ps": {"command": server, "ports": ["ps"]},
        "worker": {"command": [sys.executable, "-c", WORKER.format(go=str(go))], "after": ["ps"]},
    }
    run = trainmaster.submit(trainmaster.Job(name="listens", roles=roles), directory=tmp_path)
    command = [sys.executable, "-m", "trainmaster.cli", "ui", "--no-browser"]

    def found() -> dict[Row, set[str]]:
        kinds = {processes.PROGRAM: "p", processes.TEMPLATE: "agent"}  # programs, and parameter servers
        ours = {mark.process.pid: kinds.get(mark.kind, mark.kind) for mark in processes.living(run.id)}
        return listening.rows_of({**ours, pages.pid: "`tm ui`"})

    with subprocess.Popen(command, stdout=subprocess.PIPE) as pages:
        try:
            assert pages.stdout is not None
            pages.stdout.readline()  # it serves
            until(lambda: "trains" in run.logs("worker:0"), what=lambda: str([*run.logs()]))
            until(lambda: set(found()) == OF_A_JOB, what=lambda: str(found()))
            places = {place for at in found().values() for place in at}
            assert all(place.startswith((f"{home.runtime}/", "127.0.0.1")) for place in places), places
            assert len(found()[PARAMETERS_HERE]) == 1
            assert len(listening.ports(pages.pid)) == 2
        finally:
            pages.kill()
    go.touch()
    run.wait()
